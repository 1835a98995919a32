"""What `narwhal top` draws, from parts as a router tells them."""

import io
import re
from typing import Any

import pytest
from rich.console import Console

from narwhal.diagnose.screen import KEYS, Screen, View

HOLD = {"on": False, "reason": ""}


def engine(number: int, role: str, **more: Any) -> dict[str, Any]:
    plain = {"state": "live", "pin": None, "probation": False, "lone": False, "reason": "", "prefills": 1}
    work = {"kv_tokens": 500, "kv_capacity_tokens": 1000, "backlog_s": 0.5, "residents": 3, "occupancy": 0.25}
    return {"id": f"gpu/{number}", "role": role, "drain": None, "since_s": 1.0, **plain, **work, **more}


def decision(outcome: str, **more: Any) -> dict[str, Any]:
    guard = {"name": "confirmations", "passed": False, "value": 1.0, "limit": 2.0, "engine": ""}
    moves = [{"engine": "gpu/1", "source": "prefill", "target": "decode"}]
    words = "decode is at 1.30 of its target; held by confirmations: 1 against 2"
    return {"id": 7, "t": 40.0, "outcome": outcome, "reason": words, "moves": moves, "guards": [guard], **more}


def parts(engines: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    state = {
        "fleet": "lab", "model": "m", "policy": "projection", "uptime_s": 3725.0, "epoch": 2, "lease": None,
        "degraded": "", "hold": HOLD, "journal": {"error": "", "dropped_lines": 0}, "seats_waiting": 1,
        "split": {"prefill": 1, "decode": 3}, "load": {"prefill": 0.5, "decode": 1.3}, "attainment_60s": 0.9,
        "queue": {"requests": 4, "oldest_s": 1.5}, "counts": {"offered": 10, "served": 8}, "engines": engines, **more,
    }  # fmt: skip
    pair = {"producer": "gpu/0", "consumer": "gpu/1", "state": "out", "reason": "3 handoffs failed", "transport": ""}
    change = {"type": "engine", "t": 41.0, "engine": "gpu/1", "change": "ejected", "reason": "no answer"}
    return {
        "state": {"part": "state", "now_t": 50.0, "requests": 9, "attainment": 0.95, "state": state},
        "decisions": {"part": "decisions", "moves": [decision("moved")], "held": [decision("held")]},
        "changes": {"part": "changes", "changes": [change]},
        "links": {"part": "links", "transport": "pull", "pairs": [pair]},
    }


FOUR = [engine(0, "prefill"), *(engine(n, "decode") for n in range(1, 4))]


def drawn(view: View, width: int = 100, height: int = 60, *, whole: bool = False, color: bool = False) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width, height=height, force_terminal=True, no_color=not color, highlight=False)
    console.print(Screen(view, whole=whole))
    return out.getvalue().splitlines()


def plain(view: View, width: int = 100, height: int = 60, *, whole: bool = False) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, height=height, highlight=False).print(Screen(view, whole=whole))
    return out.getvalue().splitlines()


def test_it_says_what_the_page_says() -> None:
    text = "\n".join(plain(View(parts(FOUR), 52.0, {"offered": 2.0, "served": 1.5}), 120))
    for words in (
        "lab · m · projection · up 1h02m · 2 role changes",
        "split     1 prefill, 3 decode",
        "9 in flight, 2.0 offered/s, 1.5 served/s",
        "4 waiting, the oldest for 1.5 s; 1 wait for a decode seat",
        "P gpu/0         live           50%",
        "D gpu/3         live           50%",
        "links     ✓ 2, ? 0, ✕ 1, by pull",
        "✕ gpu/0 > gpu/1  3 handoffs failed",
        "12s  gpu/1 prefill → decode  decode is at 1.30 of its target",
        "gpu/1 prefill → decode  found by 1 of 2 evaluations in a row; decode is at 1.30",
        "11s  gpu/1 ejected  no answer",
        KEYS,
    ):
        assert words in text, text
    assert "  1.30\n" in text
    assert "held by" not in text.partition("\nheld")[2]


def test_trouble_stands_above_everything_that_is_old() -> None:
    broken = [engine(0, "prefill", state="ejected", reason="no answer within 3 s", pin="prefill"), *FOUR[1:]]
    state = {"hold": {"on": True, "reason": "maintenance"}, "journal": {"error": "no space", "dropped_lines": 2}}
    lines = plain(View(parts(broken, **state), 50.0, {}, trouble="no router answers", silent_s=75.0))
    assert lines[1].startswith("LOST for 1m15s, trying again")
    assert "no router answers" in lines[2]
    text = "\n".join(lines)
    assert "moves are on hold: maintenance" in text
    assert "cannot be written: no space" in text
    assert "P gpu/0*        ejected" in text
    assert text.index("ejected") < text.index("split ")


@pytest.mark.parametrize(("width", "height"), [(100, 60), (80, 24), (50, 20), (30, 12), (10, 5)])
def test_it_fits_the_terminal(width: int, height: int) -> None:
    many = [engine(n, "prefill" if n % 2 else "decode") for n in range(64)]
    lines = plain(View(parts(many), 50.0, {}), width, height)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    assert lines[-1].strip()[:4] == KEYS[:4]


def test_a_low_terminal_keeps_the_engines_longest() -> None:
    text = "\n".join(plain(View(parts(FOUR), 50.0, {}), 100, 24))
    assert all(f"gpu/{n}  " in text for n in range(4))
    assert len(plain(View(parts(FOUR * 16), 50.0, {}), 100, 24, whole=True)) > 64


def test_engines_stand_by_role_then_trouble_then_number() -> None:
    engines = [engine(n, "decode") for n in (10, 9)] + [engine(2, "decode", state="ejected"), engine(11, "prefill")]
    rows = [line[:8] for line in plain(View(parts(engines), 50.0, {})) if re.match("[PD] gpu/", line)]
    assert rows == ["P gpu/11", "D gpu/2 ", "D gpu/9 ", "D gpu/10"]


def test_help_and_pause_are_said() -> None:
    assert "p           pause" in "\n".join(plain(View(parts(FOUR), 50.0, {}, help=True), 60))
    assert plain(View(parts(FOUR), 50.0, {}, paused=True))[-1].startswith("PAUSED · ")


def test_without_colour_no_colour_is_written() -> None:
    colours = [f"\x1b[{code}" for code in ("31", "32", "33", "94", "1;31", "1;33", "1;94")]
    with_colour = "".join(drawn(View(parts(FOUR), 50.0, {}), color=True))
    without = "".join(drawn(View(parts(FOUR), 50.0, {})))
    assert any(code in with_colour for code in colours)
    assert not any(code in without for code in colours)
