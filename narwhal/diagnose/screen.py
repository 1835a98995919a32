"""What `narwhal top` shows of a router: the live page's parts, as lines that fit a terminal."""

import re
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from narwhal.diagnose.words import degraded_lines, lease_lines, refusal

Json = dict[str, Any]
STYLES = {"prefill": "bright_blue", "decode": "yellow"}
_STATES = {"ejected": "bold red", "silent": "bold red", "suspected": "bold red", "live": ""}
_LOADING = {"unadmitted": "loading"}
_HELD_BY = "; held by "
_BAR = 30
"""Greatest width of a bar, in cells."""
_FEW = 2
"""Lines that a section keeps while others can be cut."""
_WIDE = 72
"""Width from which an engine's line has all its columns."""
KEYS = "q quit · p pause · ? help"
HELP = (
    "q, Ctrl-C   leave",
    "p           pause: the picture stands still; p again goes on",
    "?           this help; again: back",
    "",
    "P and D     prefill and decode engines; * pinned, ~ on probation, + serves both legs",
    "load        demand of a phase over what its engines can do within the SLO; 1.00 is at its target (│)",
    "in SLO      share of the requests of the last 60 s within both targets, and what the SLO promises",
    "held        moves that a rule or guard held back: narwhal why has all the numbers",
    "links       pairs of a prefill with a decode engine: ✓ carry handoffs, ? failed lately, ✕ quarantined",
)


@dataclass(frozen=True, slots=True)
class View:
    """What is drawn. Ages are as of `now_t`, in seconds on the router's clock."""

    parts: dict[str, Json]
    now_t: float
    rates: dict[str, float]
    """Requests a second, by the names of `counts`."""
    trouble: str = ""
    """Why the router is lost; empty: it is not."""
    silent_s: float = 0.0
    paused: bool = False
    help: bool = False


class Screen:
    """A view, as wide and as high as the terminal lets it be. `whole`: of any height."""

    def __init__(self, view: View, *, whole: bool = False) -> None:
        self._view = view
        self._whole = whole

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw it."""
        width = options.max_width
        if self._view.help:
            yield from [_line("narwhal top", "bold"), _line(), *map(Text, HELP)]
        elif self._whole:
            yield from (line for part in _sections(self._view, width) for line in part)
        else:
            yield from fitted(_sections(self._view, width), options.max_height - 1)
            yield _line(("PAUSED · " if self._view.paused else "") + KEYS, "reverse")


def fitted(sections: list[list[Text]], height: int) -> list[Text]:
    """Lines of the sections, cut where they are too high: the last ones to `_FEW` lines each, then the engines.

    The first section stays as long as there is room for it at all.
    """
    kept = [list(section) for section in sections]
    while sum(map(len, kept)) > height:
        long = [section for section in kept[2:] if len(section) > _FEW] or [each for each in kept[1:] if len(each) > 1]
        if not long:
            break
        longest = max(long, key=len)
        longest.pop()
        if len(longest) > 1:
            longest[-1] = _line("  …", "dim")
    return [line for section in kept for line in section][: max(height, 0)]


def _sections(view: View, width: int) -> list[list[Text]]:
    state = view.parts["state"]["state"]
    return [_head(view, width), _engines(state, width), _links(view), _moves(view), _held(view), _changes(view)]


def _head(view: View, width: int) -> list[Text]:
    part, state = view.parts["state"], view.parts["state"]["state"]
    title = _line(f"{state['fleet']} · {state['model']}", "bold")
    title.append(f" · {state['policy']} · up {_age(state['uptime_s'])} · {state['epoch']} role changes", "not bold")
    lines = [title]
    if view.trouble:
        lines.append(_line(f"LOST for {_age(view.silent_s)}, trying again; what stands below is old", "bold red"))
        lines.append(_line(f"          {view.trouble}", "red"))
    lines += [_line(text, "bold red") for text in degraded_lines(state)]
    lines += [_line(text) for text in lease_lines(state)]
    if state["hold"]["on"]:
        lines.append(_line(f"hold      moves are on hold: {state['hold']['reason'] or 'no reason given'}", "bold"))
    if state["journal"]["error"]:
        lines.append(_line(f"journal   cannot be written: {state['journal']['error']}", "bold red"))
    split, cells = state["split"], max(min(_BAR, width - 20) // 2 * 2, 2)
    lines.append(_line(f"split     {split['prefill']} prefill, {split['decode']} decode"))
    lines += [_load(role, state["load"][role], cells) for role in STYLES]
    lines.append(_attained(state["attainment_60s"], part["attainment"], cells))
    return [*lines, *_requests(view), _line()]


def _requests(view: View) -> list[Text]:
    part, state = view.parts["state"], view.parts["state"]["state"]
    counts, queue = state["counts"], state["queue"]
    rates = ", ".join(f"{view.rates[name]:.1f} {name}/s" for name in ("offered", "served") if name in view.rates)
    oldest = f", the oldest for {queue['oldest_s']:.1f} s" if queue["requests"] else ""
    return [
        _line(f"requests  {part['requests']} in flight{', ' if rates else ''}{rates}"),
        _line(f"queue     {queue['requests']} waiting{oldest}; {state['seats_waiting']} wait for a decode seat"),
        _line("total     " + ", ".join(f"{counts[key]} {key}" for key in counts)),
    ]


def _bar(share: float, cells: int, mark: float, style: str) -> Text:
    """A bar with a mark at a share of its width."""
    at, filled = min(round(mark * cells), cells - 1), min(round(share * cells), cells)
    text = Text()
    for cell in range(cells):
        sign = "│" if cell == at else "█" if cell < filled else "·"
        text.append(sign, style if cell < filled or cell == at else "dim")
    return text


def _load(role: str, value: float | None, cells: int) -> Text:
    line = _line(f"{role:<10}", STYLES[role])
    line.append_text(_bar((value or 0.0) / 2, cells, 0.5, STYLES[role]))
    over = value is not None and value > 1
    return line.append("  unknown" if value is None else f"  {value:.2f}", "bold red" if over else "")


def _attained(value: float | None, target: float, cells: int) -> Text:
    under = value is not None and value < target
    line = _line("in SLO    ").append_text(_bar(value or 0.0, cells, target, "red" if under else "green"))
    return line.append("  –" if value is None else f"  {value:.0%}", "bold red" if under else "")


def _engines(state: Json, width: int) -> list[Text]:
    wide = width >= _WIDE
    head = f"  {'engine':<14}{'state':<12}{'KV':>6}" + (f"{'prompts':>9}{'backlog':>9}{'streams':>9}{'full':>7}" * wide)
    rows = sorted(state["engines"], key=_order)
    return [_line(head, "dim"), *(_engine(engine, wide=wide) for engine in rows), _line()]


def _order(engine: Json) -> tuple[bool, bool, list[tuple[int, str]]]:
    """Prefill first, in each role those in trouble, then by name with its numbers as numbers."""
    name = [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", engine["id"])]
    return engine["role"] != "prefill", engine["state"] == "live", name


def _engine(engine: Json, *, wide: bool) -> Text:
    letter, standing = engine["role"][0].upper(), engine["state"]
    marks = "*" * bool(engine["pin"]) + "~" * bool(engine["probation"]) + "+" * bool(engine["lone"])
    line = _line(f"{letter} ", f"bold {STYLES[engine['role']]}")
    line.append(f"{engine['id'] + marks:<14}", STYLES[engine["role"]])
    line.append(f"{_LOADING.get(standing, standing):<12}", _STATES.get(standing, "bold"))
    line.append(f"{_share(engine['kv_tokens'] / engine['kv_capacity_tokens']):>6}", "default")
    if wide:
        line.append(f"{engine['prefills']:>9}{engine['backlog_s']:>8.1f}s{engine['residents']:>9}")
        line.append(f"{_share(engine['occupancy']):>7}")
    if engine["reason"]:
        line.append(f"  {engine['reason']}", "red")
    return line


def _links(view: View) -> list[Text]:
    part, engines = view.parts["links"], view.parts["state"]["state"]["engines"]
    roles = [engine["role"] for engine in engines]
    counts = {sign: [pair for pair in part["pairs"] if pair["state"] == word] for sign, word in _SIGNS.items()}
    out, doubtful = counts["✕"], counts["?"]
    all_in = roles.count("prefill") * roles.count("decode") - len(out) - len(doubtful)
    kind = f", by {part['transport']}" if part["transport"] else ""
    lines = [_line(f"links     ✓ {max(all_in, 0)}, ? {len(doubtful)}, ✕ {len(out)}{kind}")]
    for sign, pairs in (("✕", out), ("?", doubtful)):
        lines += [_line(f"          {sign} {p['producer']} > {p['consumer']}  {p['reason']}", "red") for p in pairs]
    return [*lines, _line()]


_SIGNS = {"✕": "out", "?": "doubtful"}


def _moves(view: View) -> list[Text]:
    rows = view.parts["decisions"]["moves"][::-1]
    if not rows:
        return [_line("moves     none yet", "dim")]
    return [_line("moves", "dim"), *(_decision(view, row, row["reason"]) for row in rows)]


def _held(view: View) -> list[Text]:
    rows = view.parts["decisions"]["held"][::-1]
    if not rows:
        return [_line("held      nothing", "dim")]
    hold = view.parts["state"]["state"]["hold"]["reason"]
    said = [(row, f"{refusal(row, hold)}; {row['reason'].partition(_HELD_BY)[0]}") for row in rows]
    return [_line("held", "dim"), *(_decision(view, row, words) for row, words in said)]


def _decision(view: View, row: Json, words: str) -> Text:
    line = _line(f"{_age(view.now_t - row['t']):>9}  ", "dim")
    for number, move in enumerate(row["moves"]):
        line.append("; " if number else "", "not dim")
        line.append(f"{move['engine']} ", "not dim bold")
        line.append(move["source"], f"not dim {STYLES[move['source']]}").append(" → ", "not dim")
        line.append(move["target"], f"not dim {STYLES[move['target']]}")
    return line.append(f"  {words}", "not dim")


def _changes(view: View) -> list[Text]:
    rows = view.parts["changes"]["changes"][::-1]
    lines = [_line("changes" if rows else "changes   none yet", "dim")]
    for row in rows:
        who = f"{row['producer']} > {row['consumer']}" if row["type"] == "pair" else row["engine"]
        lines.append(_line(f"{_age(view.now_t - row['t']):>9}  {who} {row['change']}  {row['reason']}"))
    return lines


def _age(seconds: float) -> str:
    """A time in little room: `9s`, `4m12s`, `3h05m`, `2d`."""
    whole = max(int(seconds), 0)
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s" if whole >= 60 else f"{whole}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02}m" if whole < 86400 else f"{whole // 86400}d"


def _share(value: float) -> str:
    return f"{value:.0%}"


def _line(text: str = "", style: str = "") -> Text:
    """Text that is cut at the edge instead of taking a second line."""
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")
