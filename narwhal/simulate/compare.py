"""Policies side by side: figures over seeds, the table, and the data for `--format json`."""

import io
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from narwhal.simulate.policies import Policy
from narwhal.simulate.scenario import Outcome, Scenario, goodput, run


@dataclass(slots=True)
class Figures:
    """What a policy reached, over all seeds."""

    policy: str
    runs: list[Outcome] = field(default_factory=list)
    goodputs_rps: list[float] = field(default_factory=list)

    def mean(self, value: Callable[[Outcome], float | None]) -> float | None:
        """Mean over the runs that have the value."""
        values = [v for run in self.runs if (v := value(run)) is not None]
        return statistics.fmean(values) if values else None

    @property
    def attainment(self) -> float | None:
        """Share of offered requests that met their targets."""
        return self.mean(lambda run: run.score.attainment)

    @property
    def goodput_rps(self) -> float | None:
        """Mean goodput; None when it was not asked for."""
        return statistics.fmean(self.goodputs_rps) if self.goodputs_rps else None

    @property
    def adapt_s(self) -> tuple[float, float] | None:
        """Mean and largest time to adapt."""
        times = [t for run in self.runs for t in run.score.adapt_s]
        return (statistics.fmean(times), max(times)) if times else None

    def data(self, reference: "Figures | None") -> dict[str, Any]:
        """The figures as JSON."""
        data: dict[str, Any] = {
            "attainment": self.attainment,
            "attainment_by_seed": {str(run.seed): run.score.attainment for run in self.runs},
            "goodput_rps": self.goodput_rps,
            "goodput_by_seed_rps": self.goodputs_rps,
            "moves": self.mean(lambda run: run.moves),
            "offered": sum(run.score.offered for run in self.runs),
            "refused": sum(run.score.refused for run in self.runs),
            "failed": sum(run.score.failed for run in self.runs),
            "adapt_mean_s": self.adapt_s[0] if self.adapt_s else None,
            "adapt_max_s": self.adapt_s[1] if self.adapt_s else None,
            "regret": regret(self, reference),
        }
        for place, name in enumerate(("p50", "p90", "p99")):
            data[f"ttft_{name}_s"] = self.mean(lambda run: run.score.ttft_s[place] if run.score.ttft_s else None)  # noqa: B023
            data[f"tpot_{name}_s"] = self.mean(lambda run: run.score.tpot_s[place] if run.score.tpot_s else None)  # noqa: B023
        return data


def regret(figures: Figures, reference: Figures | None) -> float | None:
    """Share of the clairvoyant reference that is missing: of its goodput, else of its attainment."""
    if reference is None:
        return None
    for name in ("goodput_rps", "attainment"):
        own, best = getattr(figures, name), getattr(reference, name)
        if own is not None and best:
            return float(1.0 - own / best)
    return None


def compare(
    scenario: Scenario,
    policies: Sequence[Policy],
    seeds: Sequence[int],
    *,
    rate_rps: float,
    guess_rps: float | None,
    say: Callable[[str], None],
) -> dict[str, Figures]:
    """Run each policy with each seed at `rate_rps`; with `guess_rps` also search its goodput, from there."""
    result = {}
    for policy in policies:
        figures = Figures(policy.name)
        for seed in seeds:
            outcome = run(scenario, policy, rate_rps, seed)
            figures.runs.append(outcome)
            shown = "nothing scored" if outcome.score.attainment is None else f"{outcome.score.attainment:.3f}"
            say(f"{policy.name}, seed {seed}: attainment {shown} at {rate_rps:.2f} requests/s, {outcome.moves} moves")
            if guess_rps is not None:
                figures.goodputs_rps.append(goodput(scenario, policy, seed, guess_rps, say))
        result[policy.name] = figures
    return result


def table(results: Mapping[str, Figures], title: str, *, width: int = 110) -> str:
    """The comparison as text."""
    reference = results.get("clairvoyant")
    searched = any(figures.goodputs_rps for figures in results.values())
    columns = ["policy", "attainment", *(["goodput"] if searched else [])]
    columns += ["TTFT p50/p90/p99 s", "TPOT p50/p90/p99 ms", "moves", "adapt mean/max s"]
    columns += ["regret"] if reference is not None else []
    grid = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for number, name in enumerate(columns):
        grid.add_column(name, justify="left" if number == 0 else "right", no_wrap=True)
    for figures in results.values():
        data = figures.data(reference)
        row = [figures.policy, _text(data["attainment"], ".3f")]
        row += [_text(data["goodput_rps"], ".2f")] if searched else []
        row.append("/".join(_text(data[f"ttft_{p}_s"], ".2f") for p in ("p50", "p90", "p99")))
        row.append("/".join(_text(data[f"tpot_{p}_s"], ".1f", 1000) for p in ("p50", "p90", "p99")))
        row.append(_text(data["moves"], ".0f"))
        row.append(f"{_text(data['adapt_mean_s'], '.0f')}/{_text(data['adapt_max_s'], '.0f')}")
        row += [_text(data["regret"], ".3f")] if reference is not None else []
        grid.add_row(*row)
    return shown(grid, width=width)


def shown(grid: Table, *, width: int) -> str:
    """A table as plain text."""
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(grid)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _text(value: float | None, form: str, factor: float = 1.0) -> str:
    return "-" if value is None else format(value * factor, form)
