"""One request over time: queue, prefill leg, handoff, decode, its longest gap, and what its engines went through."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from narwhal.report.document import RequestStory
from narwhal.report.plots.style import COLORS, below, figure, plain, save

LOOKS = {
    "queue": {"color": "#BBBBBB", "hatch": ""},
    "prefill": {"color": COLORS[0], "hatch": "//"},
    "handoff": {"color": COLORS[3], "hatch": "xx"},
    "decode": {"color": COLORS[4], "hatch": ".."},
    "whole": {"color": COLORS[2], "hatch": "\\\\"},
}
WORDS = {
    "queue": "queue",
    "prefill": "prefill leg",
    "handoff": "handoff: seat,\nKV, first token",
    "decode": "decode",
    "whole": "prefill and\nfirst token",
}
"""Parts as their rows call them."""
_PAPER = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}


def draw_requests(stories: Sequence[RequestStory], folder: Path) -> list[Path]:
    """A figure for each request that the journal has."""
    return [path for story in stories if story.parts for path in _draw(story, folder)]


def _draw(story: RequestStory, folder: Path) -> list[Path]:
    with figure(1.5 + 0.5 * len(story.parts)) as (drawn, grid):
        axis = grid[0][0]
        end_s = max(part.to_s for part in story.parts)
        for row, part in enumerate(story.parts):
            _bar(axis, row, part.from_s, part.to_s, part.name, end_s)
        _marks(axis, story)
        axis.set_yticks(range(len(story.parts)), [_row(part.name, part.engine) for part in story.parts])
        axis.set(
            xlabel="time since its client sent it (s)", xlim=(0, 1.16 * end_s), ylim=(len(story.parts) - 0.4, -0.6)
        )
        axis.grid(axis="y", visible=False)
        axis.set_title(_title(story), loc="left")
        below(drawn, [axis], 2)
        return save(drawn, folder, f"request-{plain(story.run)}-{plain(story.id)}")


def _row(name: str, engine: str) -> str:
    return f"{WORDS[name]}\n{engine}" if engine else WORDS[name]


def _title(story: RequestStory) -> str:
    met = "within targets" if story.met else "targets missed"
    return (
        f"{story.id} of {story.point} ({story.run}): {story.result}, {met}\n"
        f"{story.prompt_tokens} prompt tokens, {story.tokens} generated; mean gap {_ms(story.tpot_s)}"
    )


def _ms(value: float | None) -> str:
    return "none" if value is None else f"{1e3 * value:.0f} ms"


def _bar(axis: Any, row: int, from_s: float, to_s: float, name: str, end_s: float) -> None:
    """A stretch, with its length beside it."""
    axis.barh(row, to_s - from_s, left=from_s, height=0.62, edgecolor="#333333", linewidth=0.6, **LOOKS[name])
    axis.text(to_s + 0.008 * end_s, row, _ms(to_s - from_s), va="center", fontsize=9, zorder=5, bbox=_PAPER)


def _marks(axis: Any, story: RequestStory) -> None:
    """First token, longest gap, and what happened to the engines."""
    if story.ttft_s is not None:
        axis.axvline(
            story.ttft_s,
            color="#000000",
            linewidth=1.2,
            linestyle="--",
            label=f"first token at its client: {_ms(story.ttft_s)}",
        )
    if story.gap_at_s is not None and story.gap_s is not None:
        row = len(story.parts) - 1
        label = f"longest gap: {_ms(story.gap_s)}"
        axis.plot(
            [story.gap_at_s, story.gap_at_s + story.gap_s],
            [row, row],
            color="#000000",
            linewidth=4,
            solid_capstyle="butt",
            label=label,
        )
    for incident in story.incidents:
        label = f"{incident.engine} {incident.what}"
        axis.axvline(incident.at_s, color=COLORS[1], linewidth=1.2, linestyle=":", label=label[:60])
