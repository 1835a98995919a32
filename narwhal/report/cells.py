"""Figures as the cells of a table: the same in a terminal and in Markdown."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from narwhal.report.document import ComparedPoint, Comparison, Difference, ReportPoint, ReportRun, RequestStory, Spread

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
    return Grid(columns, rows, (0, 9))


def times_grid(points: Sequence[ReportPoint]) -> Grid:
    """Times, lateness of the load, and moves."""
    columns = ["point", "TTFT ms", "TPOT ms", "longest gap ms", "lag ms", "moves"]
    rows = [
        [title(point), *map(spread, (point.ttft_s, point.tpot_s, point.gap_s)), ms(point.lag_p99_s), count(point.moves)]
        for point in points
    ]
    return Grid(columns, rows)


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


LEGEND = (
    "asked, kept: requests per second as declared and as sent; met: share of the offered within both targets; times: "
    "p50/p90/p99; lag: p99 of how late requests were sent; moves: of roles."
)


def differences_grid(comparison: Comparison, point: ComparedPoint) -> Grid:
    """What one point came to in two runs; times in milliseconds, attainment in points of percent."""
    columns = ["", "this", "other", "difference", "verdict"]
    return Grid(columns, [_difference_cells(one) for one in point.differences], (0, 4))


def comparison_words(comparison: Comparison) -> str:
    """What a comparison is, before its points."""
    return (
        f"{comparison.here} judged against {comparison.there}: differences, and intervals that hold the true ones, "
        f"all of a point together with {100 * comparison.confidence:g} % (bootstrap, {comparison.resamples} resamples, "
        f"seed {comparison.seed}); times in ms"
    )


def point_words(point: ComparedPoint) -> str:
    """The verdict on a point, and how it was found."""
    same = "the same" if point.paired else "not the same"
    drawn = f"; {same} requests, drawn {point.block} together" if point.block else ""
    return f"{point.point}: {point.verdict}, {point.why}{drawn}"


def lonely_words(comparison: Comparison) -> list[str]:
    """Points that only one of the runs has."""
    pairs = ((comparison.here, comparison.only_here), (comparison.there, comparison.only_there))
    return [f"only in {name}: {', '.join(points)}" for name, points in pairs if points]


def story_grid(story: RequestStory) -> Grid:
    """The stretches of a request's life."""
    rows = [[part.name, part.engine or NONE, ms(part.from_s), ms(part.to_s - part.from_s)] for part in story.parts]
    return Grid(["", "engine", "from ms", "took ms"], rows, (0, 1))


def story_words(story: RequestStory) -> str:
    """What became of a request."""
    said = f"{story.id} of {story.point} ({story.run}): {story.result}, targets {'met' if story.met else 'missed'}"
    said += f"; {story.prompt_tokens} prompt tokens, {story.tokens} generated; TTFT {ms(story.ttft_s)} ms"
    said += f", TPOT {ms(story.tpot_s)} ms, longest gap {ms(story.gap_s)} ms"
    said += "" if story.gap_at_s is None else f" at {ms(story.gap_at_s)} ms"
    said += f"; legs sent again: {story.retries}" if story.retries else ""
    said += f"; went on elsewhere: {story.continued}" if story.continued else ""
    for incident in story.incidents:
        said += f"; {incident.engine} at {ms(incident.at_s)} ms: {incident.what}"
    return said if story.parts else f"{said}; the router's journal does not have it"


def _difference_cells(one: Difference) -> list[str]:
    """A row of a comparison."""
    form = share if one.figure == "attainment" else ms
    shown = [FIGURES[one.figure], form(one.here), form(one.there)]
    if one.difference is None or one.low is None or one.high is None:
        return [*shown, one.why, one.verdict]
    ends = f"[{signed(one.figure, one.low)}, {signed(one.figure, one.high)}]"
    return [*shown, f"{signed(one.figure, one.difference)} {ends}", one.verdict]


def signed(figure: str, value: float) -> str:
    """A difference with its sign, in points of percent or milliseconds."""
    text = f"{100 * abs(value):.1f}" if figure == "attainment" else ms(abs(value))
    return ("+" if value > 0 else "\N{MINUS SIGN}" if value < 0 else "") + text
