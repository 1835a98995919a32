"""Server-sent events for whoever looks: one snapshot a tick for all of them, and none while nobody looks."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

import narwhal
from narwhal.router.http import Connection
from narwhal.router.incoming import Incoming
from narwhal.router.live.parts import AnyPart, StatePart, changes_part, decisions_part, links_part
from narwhal.router.replies import error_body, retry_after

if TYPE_CHECKING:
    from narwhal.router.shell import Shell

TICK_S = 1.0
"""Time between two snapshots, in seconds."""
MOST = 16
"""Viewers at a time."""
MOST_MISSED = 10
"""Ticks that a viewer may miss in a row, since it reads too slowly, before its connection is cut."""
_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-store\r\nx-accel-buffering: no\r\n"
    b"x-content-type-options: nosniff\r\ntransfer-encoding: chunked\r\n\r\n"
)


class _Viewer:
    """One that looks, as `Connection` knows who serves it."""

    def __init__(self, live: "Live", connection: Connection) -> None:
        self.connection = connection
        self.missed = 0
        self.sent: dict[str, bytes] = {}
        """The parts as they were sent last."""
        self._live = live

    def show(self, made: dict[str, bytes]) -> None:
        """Send what changed since the last time."""
        news = [event for name, event in made.items() if self.sent.get(name) != event]
        self.sent = made
        if self.connection.transport is not None and news:
            self.connection.transport.write(b"".join(news))

    def client_gone(self) -> None:
        self._live.viewers.discard(self)

    def client_slow(self, slow: bool) -> None:
        """Ticks are left out meanwhile: the next holds what has changed since the last one that was sent."""


class Live:
    """Serves `/narwhal/events`. `state`: makes the `RouterState`."""

    def __init__(self, shell: "Shell", state: Callable[[], dict[str, Any]]) -> None:
        self.viewers: set[_Viewer] = set()
        self._shell = shell
        self._state = state
        self._made: dict[str, bytes] = {}
        self._made_t = float("-inf")

    def serve(self, connection: Connection, request: Incoming) -> None:
        """Begin a stream."""
        site = request.headers.get(b"sec-fetch-site", b"none")
        if site not in (b"none", b"same-origin"):  # it could not read them, but take up the places
            connection.respond(403, error_body(403, "events are for the live page of this listener"))
        elif request.http10 or request.method == "HEAD":
            connection.respond(400, error_body(400, "a stream needs GET and HTTP/1.1"))
        elif len(self.viewers) >= MOST:
            connection.respond(503, error_body(503, f"{MOST} look already"), headers=retry_after(5.0))
        else:
            viewer = _Viewer(self, connection)
            connection.serving = viewer
            connection.transport.write(_HEAD)
            self.viewers.add(viewer)
            viewer.show(self._latest())

    def tick(self) -> None:
        """Send what changed to whoever looks."""
        if self.viewers:
            self.send(self._latest())

    def send(self, made: dict[str, bytes]) -> None:
        """Send those of the events that are others than before to each viewer that reads."""
        for viewer in list(self.viewers):
            if viewer.connection.slow:
                viewer.missed += 1
                if viewer.missed >= MOST_MISSED:
                    viewer.connection.abort()
            else:
                viewer.missed = 0
                viewer.show(made)

    def _latest(self) -> dict[str, bytes]:
        """The events; those of the last half tick serve again, however many begin to look."""
        now = self._shell.now()
        if now - self._made_t >= TICK_S / 2:
            self._made, self._made_t = self.parts(now), now
        return self._made

    def parts(self, now: float) -> dict[str, bytes]:
        """An event for each part."""
        shell, slo = self._shell, self._shell.settings.slo
        targets = (slo.ttft_s, slo.tpot_s, slo.attainment)
        parts: dict[str, AnyPart] = {
            "state": StatePart(narwhal.__version__, now, shell.open_requests, *targets, self._state()),
            "decisions": decisions_part(shell),
            "changes": changes_part(shell),
            "links": links_part(shell),
        }
        return {name: _event(name, part) for name, part in parts.items()}


def _event(name: str, part: AnyPart) -> bytes:
    data = b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(part))
    return b"%x\r\n%s\r\n" % (len(data), data)
