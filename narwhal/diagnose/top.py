"""The terminal of `narwhal top`: the picture on the other screen, keys without Enter, all put back at the end."""

import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from dataclasses import replace

from rich.console import Console
from rich.live import Live

from narwhal.diagnose.client import AdminClient, Json
from narwhal.diagnose.screen import Screen, View
from narwhal.diagnose.watch import Watch

REDRAW_S = 0.5
"""Longest time between two pictures, in seconds: ages go on."""
LATE_S = 3.0
"""Silence after which the router counts as lost, in seconds; a part comes every second."""


class Rates:
    """Requests a second, between the last two states."""

    def __init__(self) -> None:
        self.now: dict[str, float] = {}
        self._last: Json | None = None

    def look(self, part: Json) -> dict[str, float]:
        """Those of the latest state."""
        last = self._last
        if last is None or part["now_t"] != last["now_t"]:
            self._last = part
            counts, span_s = part["state"]["counts"], 0.0 if last is None else part["now_t"] - last["now_t"]
            before = {} if last is None else last["state"]["counts"]
            same = span_s > 0 and all(counts[name] >= before[name] for name in counts)  # not another process
            self.now = {name: (counts[name] - before[name]) / span_s for name in counts} if same else {}
        return self.now


def first_view(parts: dict[str, Json]) -> View:
    """What is shown of parts that have just come."""
    return View(parts, parts["state"]["now_t"], {})


def show_live(admin: AdminClient, parts: dict[str, Json], *, color: bool) -> None:
    """Show it until `q` is pressed. `parts`: the first of them."""
    console = Console(no_color=not color, highlight=False)
    watch, rates, view = Watch(admin, parts), Rates(), first_view(parts)
    watch.start()
    try:
        with _keys() as key, Live(Screen(view), console=console, screen=True, auto_refresh=False) as live:
            while (pressed := key(REDRAW_S)) != "q":
                if pressed == "p":
                    view = replace(view, paused=not view.paused)
                elif pressed == "?":
                    view = replace(view, help=not view.help)
                view = view if view.paused else _next(view, watch, rates)
                live.update(Screen(view), refresh=True)
    finally:
        watch.stop()


def _next(view: View, watch: Watch, rates: Rates) -> View:
    parts, silent_s = watch.parts, time.monotonic() - watch.heard_t
    trouble = watch.trouble or (f"nothing was heard for {silent_s:.0f} s" if silent_s > LATE_S else "")
    now_t = parts["state"]["now_t"] + silent_s
    return replace(view, parts=parts, now_t=now_t, rates=rates.look(parts["state"]), trouble=trouble, silent_s=silent_s)


@contextlib.contextmanager
def _keys() -> Iterator["_Key"]:
    """Keys as they are pressed, without echo; the terminal is as before afterwards."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield _Key(descriptor)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


class _Key:
    """Waits for a key."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __call__(self, seconds: float) -> str:
        """The key that is pressed within this time; empty: none is. A closed terminal is `q`."""
        ready, _, _ = select.select([self._descriptor], [], [], seconds)
        if not ready:
            return ""
        return os.read(self._descriptor, 1).decode("latin1").lower() or "q"
