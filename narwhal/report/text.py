"""A report for a terminal of 80 columns."""

import io
import textwrap
from collections.abc import Iterator
from itertools import groupby

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from narwhal.report.cells import Grid, counts_grid, heading, remarks, times_grid
from narwhal.report.document import Report, ReportRun

WIDTH = 80


def text(report: Report) -> str:
    """The report as plain text."""
    parts = [part for run in report.runs for part in _run(run)]
    return "\n\n".join(parts)


def _run(run: ReportRun) -> Iterator[str]:
    for _, points in groupby(run.points, key=lambda point: point.source):
        same = list(points)
        head = textwrap.fill(heading(run, same), WIDTH, subsequent_indent="  ")
        yield f"{head}\n{table(counts_grid(same))}\n\n{table(times_grid(same))}"
    said = [textwrap.fill(one, WIDTH, initial_indent="- ", subsequent_indent="  ") for one in remarks(run)]
    if said:
        yield "\n".join(said)


def table(grid: Grid) -> str:
    """A table as lines without trailing blanks."""
    drawn = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    for place, name in enumerate(grid.columns):
        drawn.add_column(name, justify="left" if place in grid.words else "right", no_wrap=place > 0, overflow="fold")
    for row in grid.rows:
        drawn.add_row(*row)
    out = io.StringIO()
    Console(file=out, width=WIDTH, color_system=None).print(drawn)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())
