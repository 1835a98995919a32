"""What the control bench measures: mixes, engines, admission, and at which points."""

from dataclasses import dataclass
from pathlib import Path

SEEDS = (21, 22, 23)
"""Nothing was tuned or chosen with these: the control study tuned on seeds 1 and 2; the reading of Arrow's algorithms,
ADR 6 and ADR 8 used 11 to 13."""
TRACE_SEEDS = SEEDS[:1]
"""A trace brings its own arrivals, and an hour of it takes long."""
POLICIES = ("colocated:512", "arrow", "coldswap:60", "reactive", "projection")
TRACES = ("azure_code_2023.csv", "azure_conv_2023.csv")
CLAIRVOYANT_S = 300.0
"""A rollout with the true future is slow: it is compared on the first seed and at most this long, with the others run
again at that length beside it."""
FIXED_LOAD = 0.8
"""Share of the fluid capacity at which attainment is measured where goodput is not searched."""


@dataclass(frozen=True, slots=True)
class Point:
    """One line of the table."""

    engines: int
    traffic: str
    """A mix, or the path of a trace."""
    admission: str = "open"
    goodput: bool = False
    clairvoyant: bool = False
    seconds: float = 480.0
    trace: Path | None = None
    policies: tuple[str, ...] = POLICIES
    seeds: tuple[int, ...] = SEEDS

    @property
    def name(self) -> str:
        """How the line is called."""
        name = f"{self.engines} engines, {self.traffic}" + (", admission on" if self.admission != "open" else "")
        return f"{name}, goodput, seed {self.seeds[0]}" if len(self.seeds) == 1 and self.goodput else name


def points(traces: Path | None, *, quick: bool, full: bool) -> list[Point]:
    """The points of a run: `quick` for minutes, `full` for goodput everywhere, and with one seed at two more points."""
    searched = [
        Point(8, "turning:code,reas:60", goodput=True, clairvoyant=not quick),
        Point(8, "turning:code,reas:180", goodput=True, clairvoyant=not quick, seconds=720.0),
        Point(8, "turning:code,conv:120", goodput=True, clairvoyant=not quick),
    ]
    if quick:
        return [Point(8, "turning:code,reas:60", seconds=300.0), Point(8, "steady:conv,reas", seconds=300.0)]
    fixed = [
        Point(8, "turning:code,reas:20", goodput=full),
        Point(8, "sin:conv,reas:120", goodput=full),
        Point(8, "bursty:conv,code:60", goodput=full),
        Point(8, "steady:conv,reas", goodput=full),
        Point(4, "turning:code,reas:60", goodput=full),
        Point(4, "turning:code,conv:120", goodput=full),
        Point(16, "turning:code,reas:60", goodput=full),
        Point(16, "steady:conv,reas", goodput=full),
        Point(8, "turning:code,reas:60", "predictive", goodput=full),
        Point(8, "turning:code,conv:120", "predictive", goodput=full),
        Point(8, "steady:conv,reas", "predictive", goodput=full),
    ]
    ours = ("reactive", "projection")
    alone = [
        Point(engines, "turning:code,reas:60", admission, goodput=True, policies=ours, seeds=SEEDS[:1])
        for engines, admission in ((16, "open"), (8, "predictive"))
    ]
    files = [traces / file for file in TRACES if traces is not None and (traces / file).is_file()]
    hours = [Point(4, f.name, goodput=full, seconds=3600.0, trace=f, policies=ours, seeds=TRACE_SEEDS) for f in files]
    return searched + fixed + (alone if full else []) + hours
