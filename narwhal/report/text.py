"""A report for a terminal of 80 columns."""

import io
import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.box import SIMPLE_HEAD
from rich.console import Console, JustifyMethod
from rich.table import Table

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

WIDTH = 80
NARROWEST = 15
"""Letters that names keep where a table is too wide."""


def text(report: Report, pictures: Sequence[str] = ()) -> str:
    """The report as plain text, and where pictures of it are."""
    parts = [part for run in report.runs for part in _run(run)]
    parts.append(_filled(LEGEND))
    if report.comparison is not None:
        parts += _comparison(report.comparison)
    for story in report.requests:
        parts += [_filled(story_words(story)), *([table(story_grid(story))] if story.parts else [])]
    if pictures:
        parts.append("\n".join(["plots, each as SVG too:", *(f"  {path}" for path in pictures)]))
    return "\n\n".join(parts)


def _run(run: ReportRun) -> Iterator[str]:
    for _, points in groupby(run.points, key=lambda point: point.source):
        same = list(points)
        yield f"{_filled(heading(run, same))}\n{table(counts_grid(same))}\n\n{table(times_grid(same))}"
    said = [_filled(f"- {one}") for one in remarks(run)]
    if said:
        yield "\n".join(said)


def _comparison(comparison: Comparison) -> Iterator[str]:
    yield _filled(comparison_words(comparison))
    for point in comparison.points:
        shown = "\n" + table(differences_grid(comparison, point)) if point.differences else ""
        yield _filled(point_words(point)) + shown
    yield from map(_filled, lonely_words(comparison))


def _filled(text: str) -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent="  ")


def table(grid: Grid) -> str:
    """A table as lines without trailing blanks."""
    drawn = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    for place, name in enumerate(grid.columns):
        least = None if place else min(NARROWEST, max((len(row[0]) for row in grid.rows), default=0))
        side: JustifyMethod = "left" if place in grid.words else "right"
        drawn.add_column(name, justify=side, no_wrap=place > 0, overflow="fold", min_width=least)
    for row in grid.rows:
        drawn.add_row(*row)
    out = io.StringIO()
    Console(file=out, width=WIDTH, color_system=None).print(drawn)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())
