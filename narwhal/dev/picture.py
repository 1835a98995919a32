"""The demo's live picture, drawn from a `View`; and the same in one line, for what is no terminal."""

from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.panel import Panel
from rich.text import Text

from narwhal.dev.demo import RECENT_S, View
from narwhal.dev.traffic import DECODE_HEAVY, PREFILL_HEAVY

_COLORS = {"prefill": "black on bright_cyan", "decode": "black on bright_magenta"}
_LABEL = 16
"""Width of the labels."""
_VALUE = 9
"""Width of the value behind a bar."""
_BAR = 40
"""Greatest width of a load bar; the target (1.0) is its middle."""
_WIDE = 80
"""Width from which the picture has room at its sides."""
_MOVES = 6
_WORDS = {PREFILL_HEAVY: "long prompts, short answers", DECODE_HEAVY: "short prompts, long answers"}

Sections = tuple[list[Text], list[Text], list[Text]]
"""Lines of the engines, of the figures (the least important last), and of the moves (the newest last)."""


class Picture:
    """The whole picture, as wide and as high as the terminal lets it be when it is drawn."""

    def __init__(self, view: View) -> None:
        self._view = view

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw it."""
        view, width = self._view, options.max_width
        side = 2 if width >= _WIDE else 1
        lines = fitted(_sections(view, width - 2 - 2 * side), options.max_height - 2)
        title = f"narwhal demo · {view.t_s:.0f} of {view.seconds:.0f} s · {view.phase}"
        words = f" ({_WORDS[view.phase]})" if view.phase in _WORDS else ""
        yield Panel(
            Group(*lines),
            title=title + (words if len(title + words) <= width - 6 else ""),
            padding=(0, side),
            width=width,
        )


def picture(view: View) -> Picture:
    """What is shown of a view."""
    return Picture(view)


def line(view: View) -> str:
    """The picture in one line."""
    state = view.state
    split = f"{state['split']['prefill']}P{state['split']['decode']}D" if state else "no answer"
    load = f"load {_load(state, 'prefill')}/{_load(state, 'decode')}" if state else "load –"
    return (
        f"{view.t_s:5.1f} s  {view.phase:<16} {split}  {load}  in SLO {_percent(view.attainment)}"
        f" (static {_percent(view.attainment_static)})  in flight {view.in_flight}  moves {len(view.moves)}"
    )


def fitted(sections: Sections, height: int) -> list[Text]:
    """The lines of the sections, with room between them where there is any, else without the least important.

    The first to go are old moves, then the requests, the last move, and the engines; loads and SLO stay.
    """
    split, figures, moves = sections
    spaced = [Text(), *split, Text(), *figures, Text(), *moves, Text()]
    if len(spaced) <= height:
        return spaced
    over = len(split) + len(figures) + len(moves) - height
    if over > 0:
        kept = max(len(moves) - over, 1)
        moves = moves[-kept:]
    if len(split) + len(figures) + len(moves) > height:
        figures = figures[:-1]
    if len(split) + len(figures) + len(moves) > height:
        moves = []
    if len(split) + len(figures) > height:
        split = []
    return [*split, *figures, *moves][: max(height, 0)]


def _sections(view: View, width: int) -> Sections:
    return _split(view.state, width), _figures(view, width), _moves(view)


def _split(state: dict[str, Any] | None, width: int) -> list[Text]:
    if state is None:
        return [_line("the router did not answer")]
    boxes = []
    for engine in state["engines"]:
        role = engine["role"]
        count, what = (engine["prefills"], "prompt") if role == "prefill" else (engine["residents"], "stream")
        work = f"{count} {what}{'' if count == 1 else 's'}"
        boxes.append((f" {engine['id']} {role:<7} {work:>10} ", _COLORS[role]))
    widest = max((len(box) for box, _ in boxes), default=1)
    in_row = max(width // widest, 1)
    gap = " " if in_row * (widest + 1) - 1 <= width else ""
    rows = []
    for start in range(0, len(boxes), in_row):
        row = _line()
        for box, style in boxes[start : start + in_row]:
            row.append(box.ljust(widest), style=style)
            row.append(gap)
        rows.append(row)
    return rows


def _figures(view: View, width: int) -> list[Text]:
    """The bars, attainment and requests, each in one line."""
    room = width - _LABEL
    cells = min(max((room - _VALUE) // 2 * 2, 2), _BAR)
    loads = view.state["load"] if view.state else {"prefill": None, "decode": None}
    lines = [_line(f"{f'{role} load':<{_LABEL}}").append_text(_bar(loads[role], cells)) for role in loads]
    attained, static = _percent(view.attainment), _percent(view.attainment_static)
    queue = view.state["queue"]["requests"] if view.state else 0
    texts = {
        f"in SLO, {RECENT_S:.0f} s": (
            f"{attained} here, {static} with the split it started from",
            f"{attained} here, {static} without moves",
        ),
        "requests": (
            f"{view.in_flight} in flight, {queue} in the queue; {view.in_flight_static} in flight there",
            f"{view.in_flight} in flight, {queue} queued; there {view.in_flight_static}",
        ),
    }
    for label, (long, short) in texts.items():
        lines.append(_line(f"{label:<{_LABEL}}{long if len(long) <= room else short}"))
    return lines


def _bar(value: float | None, cells: int) -> Text:
    """A bar whose full target is its middle; what is above the target is red."""
    at_one = cells // 2
    filled = 0 if value is None else min(round(value * at_one), cells)
    text = Text()
    for cell in range(cells):
        mark = "│" if cell == at_one else "█" if cell < filled else "·"
        hot = cell >= at_one
        text.append(mark, style=("red" if hot else "green") if cell < filled else "dim")
    text.append("  unknown" if value is None else f"  {value:.2f}")
    return text


def _moves(view: View) -> list[Text]:
    if not view.moves:
        return [Text("no move yet", style="dim")]
    lines = []
    for move in view.moves[-_MOVES:]:
        text = _line()
        text.append(f"{move.at_s:>6.1f} s  ", style="dim")
        text.append(f"{move.engine} {move.source} → {move.target}", style="bold")
        text.append(f"  {move.reason}")
        lines.append(text)
    return lines


def _line(text: str = "") -> Text:
    """Text that is cut at the edge instead of taking a second line."""
    return Text(text, no_wrap=True, overflow="ellipsis")


def _load(state: dict[str, Any], role: str) -> str:
    value = state["load"][role]
    return "–" if value is None else f"{value:.2f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"
