"""How every picture looks: colours that the colour-blind tell apart, marks for grey prints, files that repeat."""

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from narwhal.report.errors import ReportError

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
"""Okabe and Ito's palette, the strongest on white first."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES = ("-", "--", "-.", ":")
WIDTH_IN = 8.0
"""Inches; at 150 dots an inch a README shows it at about two thirds, with letters as large as its own small ones."""
FORMATS = ("png", "svg")
SETTINGS = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.labelsize": 10,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 5.5,
    "figure.dpi": 150,
    "savefig.dpi": 150,
    "savefig.bbox": "tight",
    "svg.hashsalt": "narwhal",
    "svg.fonttype": "path",
}


def matplotlib() -> Any:
    """The matplotlib module, `pyplot` loaded, drawing to files only. Raises `ReportError`."""
    try:
        module: Any = importlib.import_module("matplotlib")
        module.use("Agg")
        importlib.import_module("matplotlib.pyplot")
    except ImportError as error:
        hint = "pip install 'narwhal-inference[plots]'"
        raise ReportError("matplotlib", "matplotlib is not installed, so no plots can be drawn", hint) from error
    return module


@contextmanager
def figure(height_in: float, rows: int = 1, columns: int = 1, **settings: Any) -> Iterator[tuple[Any, Any]]:
    """A figure with its axes (always a grid), in this room's style; it is closed afterwards."""
    module = matplotlib()
    with module.rc_context(SETTINGS):
        drawn, axes = module.pyplot.subplots(
            rows, columns, figsize=(WIDTH_IN, height_in), squeeze=False, layout="constrained", **settings
        )
        try:
            yield drawn, axes
        finally:
            module.pyplot.close(drawn)


def save(drawn: Any, folder: Path, name: str) -> list[Path]:
    """Write a figure as PNG and SVG; equal figures give equal bytes. Raises `ReportError`."""
    paths = [folder / f"{name}.{kind}" for kind in FORMATS]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in paths:
            drawn.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else {"Software": None})
    except OSError as error:
        hint = "name a folder that can be written with --plots"
        raise ReportError("plots", f"{folder}: cannot write plots: {error.strerror or error}", hint) from error
    return paths


def look(place: int) -> dict[str, Any]:
    """Colour and marker of the series at a place; after eight the line changes too."""
    return {
        "color": COLORS[place % len(COLORS)],
        "marker": MARKERS[place % len(MARKERS)],
        "linestyle": LINES[place // len(COLORS) % len(LINES)],
    }


def below(drawn: Any, axes: Sequence[Any], columns: int) -> None:
    """One legend under the whole figure, of all that is in these axes."""
    found = {label: handle for axis in axes for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    drawn.legend(found.values(), found.keys(), loc="outside lower center", ncols=columns)


def plain(name: str) -> str:
    """A name as part of a file's name."""
    return "".join(sign if sign.isalnum() or sign in "-_.@" else "-" for sign in name).strip("-")
