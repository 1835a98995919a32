"""A point over time: engines of each role, how loaded they were, who waited, and every move with its reason."""

import itertools
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from narwhal.measure import BenchSample
from narwhal.report.plots.style import COLORS, LINES, figure, plain, save
from narwhal.report.rows import Move, moves, samples
from narwhal.report.taken import Run, Taken

PREFILL, DECODE = {"color": COLORS[0], "linestyle": LINES[0]}, {"color": COLORS[1], "linestyle": LINES[1]}
WINDOW_S = 5.0
WIDE = 108
"""Letters of a line of reasons."""


def draw_courses(runs: Sequence[Run], folder: Path) -> list[Path]:
    """A figure for each point that counts and was watched."""
    written = []
    for run in runs:
        for one in run.counting:
            seen = samples(one)
            if seen:
                name = f"course-{one.point.point}" if len(runs) == 1 else f"course-{run.name}-{one.point.point}"
                title = f"{one.point.point} · {run.name} · policy {one.point.policy}"
                written += _draw(title, one, seen, moves(one), folder, plain(name))
    return written


def _draw(
    title: str, one: Taken, seen: Sequence[BenchSample], made: Sequence[Move], folder: Path, name: str
) -> list[Path]:
    said = reasons(made)
    with figure(5.6 + 0.155 * len(said), 4, sharex=True, height_ratios=(1.1, 1.2, 1, 1)) as (drawn, grid):
        split, load, queue, met = (row[0] for row in grid)
        _split(split, seen, made)
        _load(load, seen)
        _queue(queue, seen)
        _met(met, one)
        split.set_title(title, loc="left", pad=22 if made else 6)
        if one.evidence is not None and one.evidence.point.warmup_s:
            met.axvspan(0, one.evidence.point.warmup_s, color="#EEEEEE", label="warm-up, not scored")
        met.set(xlabel="time since the load began (s)", xlim=(0, max(sample.t_s for sample in seen)))
        for axis in (split, load, queue, met):
            for move in made:
                axis.axvline(move.t_s, color="#777777", linewidth=0.8, linestyle=(0, (1, 2)), zorder=0.5)
            if axis.get_legend_handles_labels()[0]:
                axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
        drawn.align_ylabels()
        if said:
            drawn.supxlabel("\n".join(said), x=0.01, ha="left", fontsize=8, family="DejaVu Sans")
        return save(drawn, folder, name)


def reasons(made: Sequence[Move]) -> list[str]:
    """The moves in words, numbered as in the picture."""
    lines: list[str] = []
    for number, move in enumerate(made, 1):
        words = f"{number}  {move.t_s:.1f} s  {move.engine} to {move.target}: {move.reason}"
        lines += textwrap.wrap(words, WIDE, subsequent_indent="     ")
    return lines


def _split(axis: Any, seen: Sequence[BenchSample], made: Sequence[Move]) -> None:
    """Engines of each role, as samples saw them, and the moves with their numbers above."""
    times, prefill, decode = zip(*splits(seen, made), strict=True)
    axis.step(times, prefill, where="post", label="prefill", linewidth=2.2, **PREFILL)
    axis.step(times, decode, where="post", label="decode", linewidth=2.2, **DECODE)
    most = max(sample.prefill + sample.decode for sample in seen)
    axis.set(ylabel="engines", ylim=(0, most + 0.3))
    axis.yaxis.get_major_locator().set_params(integer=True)
    for row, move in _rows(made, 0.022 * max(times)):
        axis.annotate(
            str(made.index(move) + 1),
            (move.t_s, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(0, 2 + 9 * row),
            textcoords="offset points",
            ha="center",
            fontsize=8,
        )


def splits(seen: Sequence[BenchSample], made: Sequence[Move]) -> list[tuple[float, int, int]]:
    """Time, prefill and decode engines: as sampled, and changed by each move when it was made.

    A sample may have seen a move that was made while it was asked for; such a move is not counted again.
    """
    found = []
    for sample, after in itertools.pairwise([*seen, seen[-1]]):
        found.append((sample.t_s, sample.prefill, sample.decode))
        between = [move for move in made if sample.t_s < move.t_s <= after.t_s]
        steps = list(itertools.accumulate(1 if move.target == "prefill" else -1 for move in between))
        if steps and steps[-1] == after.prefill - sample.prefill:
            found += [
                (move.t_s, sample.prefill + step, sample.decode - step)
                for move, step in zip(between, steps, strict=True)
            ]
    return found


def _rows(made: Sequence[Move], apart_s: float) -> list[tuple[int, Move]]:
    """Moves with the row of their number: those that stand too close to the one before go one up."""
    placed: list[tuple[int, Move]] = []
    for move in made:
        close = bool(placed) and move.t_s - placed[-1][1].t_s < apart_s
        placed.append((1 - placed[-1][0] if close else 0, move))
    return placed


def _load(axis: Any, seen: Sequence[BenchSample]) -> None:
    for name, look in (("prefill", PREFILL), ("decode", DECODE)):
        known = [(sample.t_s, getattr(sample, f"load_{name}")) for sample in seen]
        known = [(t_s, value) for t_s, value in known if value is not None]
        axis.plot([t_s for t_s, _ in known], [value for _, value in known], label=name, **look)
    axis.axhline(1.0, color="#555555", linewidth=1, linestyle=(0, (1, 2)), label="target")
    axis.set_ylabel("load over\nits target")
    axis.set_ylim(bottom=0)


def _queue(axis: Any, seen: Sequence[BenchSample]) -> None:
    times = [sample.t_s for sample in seen]
    axis.plot(times, [sample.running for sample in seen], label="under way", color=COLORS[2], linestyle=LINES[0])
    axis.plot(times, [sample.waiting for sample in seen], label="waiting", color=COLORS[3], linestyle=LINES[1])
    axis.set_ylabel("requests")
    axis.set_ylim(bottom=0)


def _met(axis: Any, one: Taken) -> None:
    """Attainment of the requests of every five seconds, by when they were to be sent."""
    windows: dict[int, list[bool]] = {}
    for seen in one.requests:
        windows.setdefault(int(seen.planned_s // WINDOW_S), []).append(bool(seen.met))
    places = sorted(windows)
    axis.bar(
        [place * WINDOW_S for place in places],
        [100 * sum(windows[place]) / len(windows[place]) for place in places],
        width=WINDOW_S * 0.9,
        align="edge",
        color=COLORS[5],
        edgecolor="#333333",
        linewidth=0.5,
    )
    axis.set(ylabel="within\ntargets (%)", ylim=(0, 104))
