"""How TTFT and TPOT are spread: for each time the share of the offered requests that had no more."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from narwhal.report.plots.style import COLORS, LINES, MARKERS, below, figure, save
from narwhal.report.taken import Run, Taken, known

MOST = 8
"""Points in one figure: as many as there are colours."""
MARKS = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Where a curve carries its marker, as shares of its own length."""


def draw_distributions(runs: Sequence[Run], folder: Path) -> list[Path]:
    """A figure for every eight points; a point has one colour and marker, a run one kind of line."""
    with_requests = [(place, run, one) for place, run in enumerate(runs) for one in run.counting if one.requests]
    points = list(dict.fromkeys(one.point.point for _, _, one in with_requests))
    written = []
    for begin in range(0, len(points), MOST):
        shown = points[begin : begin + MOST]
        series = [
            (shown.index(one.point.point), place, _label(run, one, runs), one)
            for place, run, one in with_requests
            if one.point.point in shown
        ]
        name = "distributions" if len(points) <= MOST else f"distributions-{begin // MOST + 1}"
        if len(shown) == 1:  # nothing else to give colours to
            series = [(run % MOST, run, label, one) for _, run, label, one in series]
        written += _draw(series, folder, name)
    return written


def _label(run: Run, one: Taken, runs: Sequence[Run]) -> str:
    return f"{one.point.point} ({run.name})" if len(runs) > 1 else one.point.point


def _draw(series: Sequence[tuple[int, int, str, Taken]], folder: Path, name: str) -> list[Path]:
    rows = (len(series) + 1) // 2
    with figure(3.3 + 0.22 * rows, 1, 2, sharey=True) as (drawn, axes):
        for axis, time, target in zip(axes[0], ("ttft_s", "tpot_s"), ("TTFT", "TPOT"), strict=True):
            for point, run, label, one in series:
                _curve(axis, time, point, run, label, one)
            _targets(axis, time, [one for _, _, _, one in series])
            axis.set(xscale="log", xlabel=f"{target} (ms, logarithmic)", ylim=(0, 101))
            axis.xaxis.set_major_formatter(lambda value, _place: f"{value:g}")
            axis.xaxis.set_minor_formatter(lambda value, _place: f"{value:g}" if f"{value:e}"[0] in "25" else "")
            axis.tick_params(axis="x", which="both", labelsize=9, pad=4, length=3)
        axes[0][0].set_ylabel("offered requests at or below (%)")
        runs = len({run for _, run, _, _ in series})
        below(drawn, axes[0][:1], runs if runs > 1 else 3)
        return save(drawn, folder, name)


def _curve(axis: Any, time: str, point: int, run: int, label: str, one: Taken) -> None:
    values = known(getattr(seen, time) for seen in one.requests)
    shares = [100 * (place + 1) / len(one.requests) for place in range(len(values))]
    axis.plot(
        [1e3 * value for value in values],
        shares,
        drawstyle="steps-post",
        color=COLORS[point],
        marker=MARKERS[point],
        linestyle=LINES[run % len(LINES)],
        markevery=[int(share * len(values)) for share in MARKS] if values else None,
        label=label,
    )


def _targets(axis: Any, time: str, taken: Sequence[Taken]) -> None:
    """The target, where all have the same one."""
    targets = {
        getattr(one.point.slo, time) for one in taken if one.point.slo is not None and not one.point.slo.by_prompt
    }
    if len(targets) == 1 and all(one.point.slo is not None for one in taken):
        target_ms = 1e3 * targets.pop()
        axis.axvline(target_ms, color="#555555", linestyle=(0, (1, 2)), linewidth=1.2)
        axis.annotate("target ", (target_ms, 1.0), xycoords=("data", "axes fraction"), ha="right", va="top", fontsize=9)
