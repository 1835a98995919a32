"""A report for a pull request."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from narwhal.report.cells import Grid, counts_grid, heading, remarks, times_grid
from narwhal.report.document import Report, ReportRun


def markdown(report: Report, pictures: Sequence[str] = ()) -> str:
    """The report as Markdown, with the pictures at these paths."""
    parts = [part for run in report.runs for part in _run(run)]
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


def table(grid: Grid) -> str:
    """A table in GitHub's form; figures that do not count are struck out."""
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
