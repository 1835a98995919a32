"""The demo's live picture, drawn from a `View`; and the same in one line, for what is no terminal."""

from typing import Any

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from narwhal.dev.demo import RECENT_S, View
from narwhal.dev.traffic import DECODE_HEAVY, PREFILL_HEAVY

_COLORS = {"prefill": "black on bright_cyan", "decode": "black on bright_magenta"}
_BAR, _BAR_AT_ONE = 40, 20
"""Width of a load bar, and where on it the target (1.0) is."""
_MOVES = 6
_WORDS = {PREFILL_HEAVY: "long prompts, short answers", DECODE_HEAVY: "short prompts, long answers"}


def picture(view: View) -> RenderableType:
    """The whole picture."""
    words = _WORDS.get(view.phase)
    title = f"narwhal demo · {view.t_s:.0f} of {view.seconds:.0f} s · {view.phase}"
    parts: list[RenderableType] = [_split(view.state), Text(), _figures(view), Text(), _moves(view)]
    return Panel(Group(*parts), title=title + (f" ({words})" if words else ""), padding=(1, 2))


def line(view: View) -> str:
    """The picture in one line."""
    state = view.state
    split = f"{state['split']['prefill']}P{state['split']['decode']}D" if state else "no answer"
    load = f"load {_load(state, 'prefill')}/{_load(state, 'decode')}" if state else "load –"
    return (
        f"{view.t_s:5.1f} s  {view.phase:<16} {split}  {load}  in SLO {_percent(view.attainment)}"
        f" (static {_percent(view.attainment_static)})  in flight {view.in_flight}  moves {len(view.moves)}"
    )


def _split(state: dict[str, Any] | None) -> RenderableType:
    if state is None:
        return Text("the router did not answer")
    boxes = []
    for engine in state["engines"]:
        role = engine["role"]
        count, what = (engine["prefills"], "prompt") if role == "prefill" else (engine["residents"], "stream")
        work = f"{count} {what}{'' if count == 1 else 's'}"
        boxes.append(Text(f" {engine['id']} {role:<7} {work:>10} ", style=_COLORS[role]))
    return Columns(boxes, padding=(0, 1))


def _figures(view: View) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for role in ("prefill", "decode"):
        table.add_row(f"{role} load", _bar(view.state["load"][role] if view.state else None))
    attained, static = _percent(view.attainment), _percent(view.attainment_static)
    table.add_row(f"in SLO, {RECENT_S:.0f} s", f"{attained} here, {static} with the split it started from")
    queue = view.state["queue"]["requests"] if view.state else 0
    table.add_row(
        "requests",
        f"{view.in_flight} in flight, {queue} in the queue; {view.in_flight_static} in flight there",
    )
    return table


def _bar(value: float | None) -> Text:
    """A bar whose full target is its middle; what is above the target is red."""
    filled = 0 if value is None else min(round(value * _BAR_AT_ONE), _BAR)
    text = Text()
    for cell in range(_BAR):
        mark = "│" if cell == _BAR_AT_ONE else "█" if cell < filled else "·"
        hot = cell >= _BAR_AT_ONE
        text.append(mark, style=("red" if hot else "green") if cell < filled else "dim")
    text.append("  unknown" if value is None else f"  {value:.2f}")
    return text


def _moves(view: View) -> RenderableType:
    if not view.moves:
        return Text("no move yet", style="dim")
    text = Text()
    for move in view.moves[-_MOVES:]:
        text.append(f"{move.at_s:>6.1f} s  ", style="dim")
        text.append(f"{move.engine} {move.source} → {move.target}", style="bold")
        text.append(f"  {move.reason}\n")
    text.rstrip()
    return text


def _load(state: dict[str, Any], role: str) -> str:
    value = state["load"][role]
    return "–" if value is None else f"{value:.2f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"
