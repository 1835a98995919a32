"""Figures as the cells of a table: the same in a terminal and in Markdown."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from narwhal.report.document import Difference, ReportPoint, ReportRun, Spread

NONE = "-"
STANDING = {
    "counts": "counts",
    "missed": "missed",
    "invalid": "INVALID",
    "older": "older",
    "unreconciled": NONE,
    "simulated": NONE,
}
"""How a point stands, in a word; of what is not ours, the heading says it."""
SOURCES = {
    "narwhal": "narwhal bench",
    "aiperf": "AIPerf, not reconciled, by its own definitions",
    "guidellm": "GuideLLM, not reconciled, by its own definitions",
    "vllm-bench": "vllm bench serve, not reconciled, by its own definitions",
    "simulate": "narwhal simulate: nothing was measured",
}
"""Who measured, in words."""
TIMES = {"ttft_s": "TTFT", "tpot_s": "TPOT", "gap_s": "longest gap"}
"""Times of a request, in words."""
FIGURES = {"attainment": "met"} | {
    f"{time.removesuffix('_s')}_{share}_s": f"{word} {share}"
    for time, word in TIMES.items()
    for share in ("p50", "p90", "p99")
}
"""Compared figures, in words."""


@dataclass(frozen=True, slots=True)
class Grid:
    """A table: its columns, the first of words and the others of figures, and its rows."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: Sequence[int] = (0,)
    """Columns that stand to the left."""


def share(value: float | None) -> str:
    """A share in percent."""
    return NONE if value is None else f"{100 * value:.1f} %"


def rate(value: float | None) -> str:
    """Something per second."""
    return NONE if value is None else f"{value:.2f}"


def ms(value: float | None) -> str:
    """Seconds in milliseconds, to about three digits."""
    if value is None:
        return NONE
    return f"{1e3 * value:.1f}" if abs(value) < 0.1 else f"{1e3 * value:.0f}"


def spread(value: Spread | None) -> str:
    """The three quantiles of a time in milliseconds."""
    return NONE if value is None else "/".join(ms(each) for each in (value.p50, value.p90, value.p99))


def count(value: float | None) -> str:
    """A count, or a mean of counts."""
    return NONE if value is None else f"{value:.3g}" if value % 1 else f"{value:.0f}"


def counts_grid(points: Sequence[ReportPoint]) -> Grid:
    """What was asked, sent and answered, and what it came to."""
    columns = ["point", "asked", "kept", "offered", "served", "refused", "failed", "cut", "met", "figures"]
    rows = [
        [
            title(point),
            rate(point.asked_rps),
            rate(point.kept_rps),
            *(str(number) for number in (point.offered, point.served, point.refused, point.failed, point.cut)),
            share(point.attainment),
            STANDING[point.standing],
        ]
        for point in points
    ]
    return Grid("requests per second asked and kept, requests, share that met the targets", columns, rows, (0, 9))


def times_grid(points: Sequence[ReportPoint]) -> Grid:
    """Times, lateness of the load, and moves."""
    columns = ["point", "TTFT ms", "TPOT ms", "longest gap ms", "lag ms", "moves"]
    rows = [
        [title(point), *map(spread, (point.ttft_s, point.tpot_s, point.gap_s)), ms(point.lag_p99_s), count(point.moves)]
        for point in points
    ]
    return Grid("p50/p90/p99 of times; p99 of how late requests were sent; role moves", columns, rows)


def title(point: ReportPoint) -> str:
    """A point in a table; of a simulation, the policy."""
    return point.policy if point.source == "simulate" else point.point


def heading(run: ReportRun, points: Sequence[ReportPoint]) -> str:
    """What is to be said of points of one source before their figures."""
    said = [SOURCES[points[0].source]]
    policies = sorted({point.policy for point in points if point.policy and point.source == "narwhal"})
    said += [f"policy {', '.join(policies)}"] if policies else []
    said += sorted({point.point for point in points if point.source == "simulate"})
    slo = points[0].slo
    if slo is not None and all(point.slo == slo for point in points):
        shorter = " (shorter prompts have their own)" if slo.by_prompt else ""
        said.append(f"targets TTFT {slo.ttft_s:g} s{shorter}, TPOT {1e3 * slo.tpot_s:g} ms")
    return f"{run.name}: " + " · ".join(said)


def remarks(run: ReportRun) -> list[str]:
    """What is wrong with a run, and what else is to be known of it, a sentence each."""
    said = [remark for point in run.points for remark in _remarks(point)]
    said += [f"{one.state}: {one.path}: {one.reason}" for one in run.unusable]
    for search in run.searches:
        found = "no rate held" if search.goodput_rps is None else f"goodput {search.goodput_rps:g} req/s"
        above = "" if search.above_rps is None else f"; {search.above_rps:g} did not hold"
        said.append(f"{search.point}: {found} at attainment {100 * search.level:g} %{above}")
    return said


def _remarks(point: ReportPoint) -> Iterator[str]:
    if point.standing == "invalid":
        yield f"{point.point} ({point.evidence}) does not count: {'; '.join(point.wrong)}"
    if point.standing == "older":
        yield f"{point.point} ({point.evidence}) was measured again: plots and comparisons take the newest"
    if point.standing == "missed" and point.wanted is not None:
        yield f"{point.point} is below the attainment that it declares, {100 * point.wanted:g} %"
    if point.cancelled:
        yield f"{point.point}: {point.cancelled} requests were given up when the drain was over"


def difference_cells(one: Difference) -> list[str]:
    """A row of a comparison."""
    form = share if one.figure == "attainment" else ms
    shown = [FIGURES[one.figure], form(one.here), form(one.there)]
    if one.difference is None or one.low is None or one.high is None:
        return [*shown, NONE, one.verdict + (f": {one.why}" if one.why else "")]
    ends = f"[{signed(one.figure, one.low)}, {signed(one.figure, one.high)}]"
    return [*shown, f"{signed(one.figure, one.difference)} {ends}", one.verdict]


def signed(figure: str, value: float) -> str:
    """A difference with its sign, in points of percent or milliseconds."""
    text = f"{100 * abs(value):.1f}" if figure == "attainment" else ms(abs(value))
    return ("+" if value > 0 else "\N{MINUS SIGN}" if value < 0 else "") + text
