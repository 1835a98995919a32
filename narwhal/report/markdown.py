"""A report for a pull request."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from narwhal.report.cells import (
    LEGEND,
    Grid,
    comparison_words,
    counts_grid,
    differences_grid,
    heading,
    lonely_words,
    point_words,
    remarks,
    story_grid,
    story_words,
    times_grid,
)
from narwhal.report.document import Comparison, Report, ReportRun


def markdown(report: Report, pictures: Sequence[str] = ()) -> str:
    """The report as Markdown, with the pictures at these paths."""
    parts = [part for run in report.runs for part in _run(run)]
    parts.append(_escaped(LEGEND))
    if report.comparison is not None:
        parts += _comparison(report.comparison)
    for story in report.requests:
        parts += [_escaped(story_words(story)), *([table(story_grid(story))] if story.parts else [])]
    parts += [f"![{_alt(path)}]({path})" for path in pictures]
    return "\n\n".join(parts)


def _run(run: ReportRun) -> Iterator[str]:
    yield f"### {_escaped(run.name)}"
    for _, points in groupby(run.points, key=lambda point: point.source):
        same = list(points)
        yield _escaped(heading(run, same).removeprefix(f"{run.name}: "))
        yield table(counts_grid(same))
        yield table(times_grid(same))
    said = [f"- {_escaped(one)}" for one in remarks(run)]
    if said:
        yield "\n".join(said)


def _comparison(comparison: Comparison) -> Iterator[str]:
    yield f"### {_escaped(comparison.here)} against {_escaped(comparison.there)}"
    yield _escaped(comparison_words(comparison))
    for point in comparison.points:
        verdict = f"{point.point}: {point.verdict}"
        yield f"**{_escaped(verdict)}**{_escaped(point_words(point).removeprefix(verdict))}"
        if point.differences:
            yield table(differences_grid(comparison, point))
    yield from map(_escaped, lonely_words(comparison))


def table(grid: Grid) -> str:
    """A table in GitHub's form."""
    head = f"| {' | '.join(grid.columns)} |"
    line = "|" + "|".join(" --- " if place in grid.words else " ---: " for place in range(len(grid.columns))) + "|"
    rows = [f"| {' | '.join(map(_escaped, row))} |" for row in grid.rows]
    return "\n".join([head, line, *rows])


def _escaped(text: str) -> str:
    for sign in "\\|`*_<>[]~":
        text = text.replace(sign, "\\" + sign)
    return text.replace("\n", " ")


def _alt(path: str) -> str:
    return path.rpartition("/")[2].partition(".")[0]
