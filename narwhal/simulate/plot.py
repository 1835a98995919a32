"""A picture of a comparison: attainment and split over time. Needs the `plots` extra."""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from narwhal.simulate.compare import Figures
from narwhal.simulate.score import WINDOW_S


class PlotError(RuntimeError):
    """The picture cannot be drawn; the message says why and what to do."""


def check_plot(path: Path) -> None:
    """Find out before a long run that `draw` could not write to `path`. Raises `PlotError`."""
    if path.is_dir() or not path.parent.is_dir():
        why = "it is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise PlotError(f"{path}: cannot write the picture: {why}")
    suffix = path.suffix.removeprefix(".").lower()
    known = _matplotlib().backend_bases.FigureCanvasBase.get_supported_filetypes()
    if suffix not in known:
        raise PlotError(f"{path}: no kind of picture; end its name in one of: {', '.join(sorted(known))}")


def _matplotlib() -> Any:
    """The matplotlib module, `pyplot` and `backend_bases` loaded, drawing to files only. Raises `PlotError`."""
    try:
        matplotlib: Any = importlib.import_module("matplotlib")
        matplotlib.use("Agg")
        for name in ("pyplot", "backend_bases"):
            importlib.import_module(f"matplotlib.{name}")
    except ImportError as error:
        raise PlotError("matplotlib is not installed: pip install 'narwhal-inference[plots]'") from error
    return matplotlib


def draw(results: Mapping[str, Figures], path: Path) -> None:
    """Draw the first run of each policy to `path` (PNG, SVG or PDF by its suffix). Raises `PlotError`."""
    figure = picture(results)
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise PlotError(f"{path}: cannot write the picture: {why}") from error
    finally:
        _matplotlib().pyplot.close(figure)


def picture(results: Mapping[str, Figures]) -> Any:
    """The figure: attainment of each window above, prefill engines over time below. Raises `PlotError`."""
    figure, (above, below) = _matplotlib().pyplot.subplots(2, 1, sharex=True, figsize=(10, 6))
    for name, figures in results.items():
        run = figures.runs[0]
        points = [(place * WINDOW_S, value) for place, value in enumerate(run.score.windows) if value is not None]
        above.plot([t for t, _ in points], [value for _, value in points], label=name)
        end = len(run.score.windows) * WINDOW_S
        times = [t for t, _, _ in run.splits] + [end]
        prefill = [prefill for _, prefill, _ in run.splits]
        below.step(times, [*prefill, prefill[-1]], where="post", label=name)
    above.set_ylabel("attainment")
    above.legend()
    below.set_ylabel("prefill engines")
    below.set_xlabel("seconds")
    return figure
