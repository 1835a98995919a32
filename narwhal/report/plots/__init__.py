"""Pictures of runs, as PNG and SVG. Needs the `plots` extra; matplotlib is imported when something is drawn."""

from collections.abc import Sequence
from pathlib import Path

from narwhal.report.document import RequestStory
from narwhal.report.plots.attainment import draw_attainment
from narwhal.report.plots.course import draw_courses
from narwhal.report.plots.distributions import draw_distributions
from narwhal.report.plots.request import draw_requests
from narwhal.report.plots.style import matplotlib as check_plots
from narwhal.report.taken import Run

__all__ = ["check_plots", "draw_plots"]


def draw_plots(runs: Sequence[Run], stories: Sequence[RequestStory], folder: Path) -> list[Path]:
    """Draw what there is to be drawn of these runs and requests; returns the files. Raises `ReportError`."""
    drawn = [*draw_attainment(runs, folder), *draw_distributions(runs, folder), *draw_courses(runs, folder)]
    return [*drawn, *draw_requests(stories, folder)]
