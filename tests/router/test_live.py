"""The events of the live page: their form, who gets them, and what those cost who do not read."""

import http.client
import json
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any, cast

import pytest

from narwhal.documents import problems
from narwhal.router.incoming import Incoming
from narwhal.router.live import Live
from narwhal.router.live.stream import MOST, MOST_MISSED
from tests.router.harness import PATIENCE_S, Router, eventually

PARTS = {"state", "decisions", "changes", "links"}


class Wire:
    """A connection, as far as the stream knows one."""

    def __init__(self) -> None:
        self.transport = self
        self.serving: Any = None
        self.slow = False
        self.written: list[bytes] = []
        self.refused = 0
        self.aborted = False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def respond(self, status: int, body: bytes, headers: bytes = b"") -> None:
        self.refused = status

    def abort(self) -> None:
        self.aborted = True
        self.serving.client_gone()


class Counted(Live):
    """A stream whose parts a test sets; counts how often they are made."""

    def __init__(self) -> None:
        super().__init__(cast(Any, self), dict)
        self.t = 0.0
        self.made = 0
        self.news = {"state": b"s", "links": b"l"}

    def now(self) -> float:
        return self.t

    def parts(self, now: float) -> dict[str, bytes]:
        self.made += 1
        return dict(self.news)

    def pass_s(self, seconds: int) -> None:
        for _ in range(seconds):
            self.t += 1.0
            self.tick()


def asked(method: str = "GET", *, http10: bool = False, **headers: str) -> Incoming:
    named = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    return Incoming(method, "/narwhal/events", "", named, b"", True, http10, 0.0)


def look(live: Live, request: Incoming | None = None) -> Wire:
    wire = Wire()
    live.serve(cast(Any, wire), request or asked())
    return wire


def test_nothing_is_made_while_nobody_looks_and_one_snapshot_serves_all() -> None:
    live = Counted()
    live.pass_s(5)
    assert live.made == 0
    wires = [look(live) for _ in range(5)]
    assert live.made == 1
    live.pass_s(3)
    assert live.made == 4
    wires[0].serving.client_gone()
    live.news["state"] = b"t"
    live.pass_s(1)
    assert [wire.written[-1] for wire in wires] == [b"sl", b"t", b"t", b"t", b"t"]
    for wire in wires[1:]:
        wire.serving.client_gone()
    live.pass_s(5)
    assert live.made == 5


def test_a_part_is_sent_again_when_it_is_another() -> None:
    live = Counted()
    wire = look(live)
    assert wire.written[1] == b"sl"
    live.pass_s(1)
    assert len(wire.written) == 2
    live.news["state"] = b"t"
    live.pass_s(1)
    assert wire.written[2:] == [b"t"]


def test_a_slow_reader_gets_what_is_latest_or_is_cut() -> None:
    live = Counted()
    wire, other = look(live), look(live)
    wire.slow = True
    for number in range(MOST_MISSED - 1):
        live.news["state"] = b"%d" % number
        live.pass_s(1)
    assert len(wire.written) == 2
    wire.slow = False
    live.pass_s(1)
    assert wire.written[2:] == [b"%d" % (MOST_MISSED - 2)]
    wire.slow = True
    live.pass_s(MOST_MISSED)
    assert wire.aborted
    assert not other.aborted
    assert len(live.viewers) == 1


def test_so_many_look_and_no_more() -> None:
    live = Counted()
    wires = [look(live) for _ in range(MOST)]
    assert [wire.refused for wire in wires] == [0] * MOST
    assert look(live).refused == 503
    wires[0].serving.client_gone()
    assert look(live).refused == 0


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (asked("HEAD"), 400),
        (asked(http10=True), 400),
        (asked(sec_fetch_site="cross-site"), 403),
        (asked(sec_fetch_site="same-site"), 403),
        (asked(sec_fetch_site="same-origin"), 0),
        (asked(sec_fetch_site="none"), 0),
    ],
)
def test_who_is_no_viewer_is_told_so(request_: Incoming, status: int) -> None:
    assert look(Counted(), request_).refused == status


def events(router: Router, stack: ExitStack) -> Iterator[tuple[str, Any]]:
    """Name and document of each event, as they come."""
    connection = stack.enter_context(
        closing(http.client.HTTPConnection("127.0.0.1", router.admin_port, timeout=PATIENCE_S))
    )
    connection.request("GET", "/narwhal/events")
    answer = connection.getresponse()
    assert answer.getheader("content-type") == "text/event-stream"
    assert answer.getheader("cache-control") == "no-store"
    name = ""
    while line := answer.readline():
        if line.startswith(b"event: "):
            name = line[7:].strip().decode()
        elif line.startswith(b"data: "):
            yield name, json.loads(line[6:])


def test_events_are_what_their_schema_says_and_follow_a_move(router: Router) -> None:
    with ExitStack() as stack:
        stream = events(router, stack)
        first = dict(next(stream) for _ in PARTS)
        assert first.keys() == PARTS
        for name, part in first.items():
            assert part["part"] == name
            assert problems(part, "live") == []
        assert problems(first["state"]["state"], "router-state") == []
        assert router.send("POST", "/narwhal/swap", {"a": "local/0", "b": "local/1"}, admin=True)[0] == 200
        try:
            part = next(part for name, part in stream if name == "decisions")
            assert {move["engine"] for move in part["moves"][-1]["moves"]} == {"local/0", "local/1"}
        finally:
            router.send("POST", "/narwhal/swap", {"a": "local/0", "b": "local/1"}, admin=True)
        later = next(part for name, part in stream if name == "state")
        assert later["now_t"] > first["state"]["now_t"]


def test_the_files_may_load_nothing_else(router: Router) -> None:
    for path, kind in (("/", "text/html"), ("/page.js", "text/javascript"), ("/page.css", "text/css")):
        status, headers, body = router.send("GET", path, admin=True)
        assert status == 200
        assert headers["content-type"].startswith(kind)
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert b"http://" not in body.replace(b"http://www.w3.org/", b"")
        assert b"innerHTML" not in body
        assert router.send("GET", path)[0] == 404


def test_a_viewer_that_leaves_makes_room(router: Router) -> None:
    def looks() -> bool:
        with ExitStack() as stack:
            return next(events(router, stack))[0] == "state"

    for _ in range(MOST + 4):
        eventually(looks, "an event")
