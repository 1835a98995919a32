"""The leading router's end of the follow stream."""

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec

from narwhal.control.events import HoldSet
from narwhal.router.incoming import Incoming
from narwhal.router.standby.feed import MOST, Feed
from narwhal.router.standby.line import NAMES, FollowLine
from tests.control.driving import Driver


class Wire:
    """A connection that keeps what is written to it."""

    def __init__(self) -> None:
        self.written = b""
        self.answers: list[int] = []
        self.slow = False
        self.serving: Any = None
        self.transport = self

    def write(self, data: bytes) -> None:
        self.written += data

    def respond(self, status: int, body: bytes) -> None:
        self.answers.append(status)

    def lines(self) -> list[FollowLine]:
        body = self.written.partition(b"\r\n\r\n")[2]
        return [msgspec.json.decode(piece, type=FollowLine) for piece in body.split(b"\r\n")[1::2]]


def follow(method: str = "GET", *, http10: bool = False) -> Incoming:
    return Incoming(method, "/narwhal/follow", "", {}, b"", True, http10, 0.0)


def test_the_first_line_has_everything_and_a_later_one_what_has_changed() -> None:
    driver = Driver("pd")

    async def run() -> list[Wire]:
        shell: Any = SimpleNamespace(
            control=driver.control, now=lambda: 5.0, tokens_per_byte=0.3, loop=asyncio.get_running_loop()
        )
        feed, first, second = Feed(shell, lambda: True), Wire(), Wire()
        feed.serve(first, follow())  # type: ignore[arg-type]
        await feed.flush()
        driver.feed(HoldSet(6.0, True, "night"))
        first.slow = True
        await feed.flush()
        first.slow = False
        feed.serve(second, follow())  # type: ignore[arg-type]
        await feed.flush()
        first.serving.client_gone()
        sent = len(first.written)
        await feed.flush()
        assert len(first.written) == sent
        return [first, second]

    first, second = asyncio.run(run())
    changed = [line.pieces.keys() for line in first.lines()]
    assert changed[0] == NAMES
    assert "pool" in set().union(*changed[1:])
    assert all("fields" not in names and "accounts" not in names for names in changed[1:])
    assert second.lines()[0].pieces.keys() == NAMES
    assert {(line.now_t, line.tokens_per_byte) for line in first.lines()} == {(5.0, 0.3)}


def test_who_cannot_be_served_is_told() -> None:
    async def run() -> list[Wire]:
        shell: Any = SimpleNamespace(
            control=Driver("pd").control, now=lambda: 5.0, tokens_per_byte=0.3, loop=asyncio.get_running_loop()
        )
        leads = Feed(shell, lambda: True)
        wires = [Wire() for _ in range(MOST + 4)]
        for wire in wires[: MOST + 1]:
            leads.serve(wire, follow())  # type: ignore[arg-type]
        leads.serve(wires[-3], follow(http10=True))  # type: ignore[arg-type]
        leads.serve(wires[-2], follow("HEAD"))  # type: ignore[arg-type]
        Feed(shell, lambda: False).serve(wires[-1], follow())  # type: ignore[arg-type]
        await leads.flush()
        return wires

    wires = asyncio.run(run())
    assert [wire.answers for wire in wires] == [[]] * MOST + [[503], [400], [400], [503]]
