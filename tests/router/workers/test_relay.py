"""A relay's side of what control says, with a test in place of control."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop

from narwhal.control import commands as c
from narwhal.control import events as e
from narwhal.control.admission import Refusal
from narwhal.fleet import check_text, expand, load_profile
from narwhal.router.process import Part
from narwhal.router.workers import wire
from narwhal.router.workers.relay import NO_CONTROL, Relay
from tests.fleet.fleets import BASE


class FakeControl:
    """The other end of a relay's socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        sock.setblocking(False)
        self._frames = wire.Frames(wire.read_from_relay)
        self._said: list[tuple[int, Any]] = []

    def send(self, *messages: Any) -> None:
        self.sock.send(wire.frame(messages))

    async def hear(self) -> tuple[int, Any]:
        while not self._said:
            async with asyncio.timeout(60):
                data = await asyncio.get_running_loop().sock_recv(self.sock, 65536)
            assert data
            self._said += [message for batch in self._frames.feed(data) for message in batch]
        return self._said.pop(0)


def with_relay(folder: Path, test: Callable[[Relay, FakeControl], Awaitable[None]]) -> None:
    async def run() -> None:
        fleet = check_text(BASE).fleet
        assert fleet is not None
        its, ours = socket.socketpair()
        part = Part(expand(fleet), load_profile("demo"), folder, None)
        relay = Relay(part, asyncio.get_running_loop(), its)
        await relay.link.start()
        await test(relay, FakeControl(ours))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


def test_events_say_how_much_of_control_s_word_was_known(tmp_path: Path) -> None:
    async def test(relay: Relay, control: FakeControl) -> None:
        relay.feed(e.PrefillFinished(1.0, 3, 100))
        assert await control.hear() == (0, e.PrefillFinished(1.0, 3, 100))
        control.send(wire.Readiness("", None, False))
        await relay.begun
        relay.feed(e.PrefillFinished(2.0, 3, 100))
        assert await control.hear() == (1, e.PrefillFinished(2.0, 3, 100))

    with_relay(tmp_path, test)


def test_what_nobody_waits_for_goes_with_what_somebody_does_and_in_order(tmp_path: Path) -> None:
    async def test(relay: Relay, control: FakeControl) -> None:
        told = [e.TokensObserved(1.0, (3,), (16,)), e.PrefillFinished(1.1, 5, 100), e.FirstToken(1.2, 7)]
        for event in told:
            relay.feed(event)
        assert [(await control.hear())[1] for _ in told] == told
        assert relay.link.sent == 1
        relay.feed(e.FirstToken(1.3, 9))  # alone, it goes in a moment
        assert (await control.hear())[1] == e.FirstToken(1.3, 9)

    with_relay(tmp_path, test)


def test_a_stream_that_has_begun_is_not_begun_again(tmp_path: Path) -> None:
    async def test(relay: Relay, control: FakeControl) -> None:
        dropped: list[int] = []
        stream = SimpleNamespace(number=3, relaying=True, leg="decode", drop=lambda: dropped.append(3))
        relay.exchanges[3] = stream  # type: ignore[assignment]
        for command, engine in ((c.StartPrefill(3, "b", 9.0), "b"), (c.Wait(3, "queue", 9.0), "")):
            control.send(command)
            _, event = await control.hear()
            assert (event.request, event.engine, event.cause, event.visible) == (3, engine, "stream", True)
        assert dropped == [3, 3]

    with_relay(tmp_path, test)


def test_questions_are_answered_also_when_control_is_gone(tmp_path: Path) -> None:
    async def test(relay: Relay, control: FakeControl) -> None:
        told: list[tuple[int, Refusal | None]] = []
        numbers = [relay.ask("default", 0, 100_000, lambda number, refusal: told.append((number, refusal)))]
        assert (await control.hear())[1].number == numbers[0]
        refusal = Refusal("prompt", "too long", 0.0)
        control.send(wire.Judgement(numbers[0], refusal), wire.Readiness("", None, False))
        await relay.begun
        numbers.append(relay.ask("default", 0, 100_000, lambda number, refusal: told.append((number, refusal))))
        await control.hear()
        control.sock.close()
        while relay.link.open:
            await asyncio.sleep(0.001)
        assert told == [(numbers[0], refusal), (numbers[1], NO_CONTROL)]
        assert relay.ask("default", 0, 100_000, lambda number, refusal: None) == 0
        assert relay.foresee("default", 0, 100_000) == NO_CONTROL

    with_relay(tmp_path, test)


@pytest.mark.parametrize(
    ("event", "code"),
    [
        (e.PrefillFinished(1.0, 3, 100), "no_control"),
        (e.ResumeReady(1.0, 3, 100, 8), "no_control"),
        (e.LegFailed(1.0, 3, "decode", "b", "stream", visible=True), "upstream"),
        (e.DeadlinePassed(1.0, 3, "gap"), "timeout"),
    ],
)
@pytest.mark.parametrize("visible", [False, True])
def test_without_control_nothing_is_tried_again(tmp_path: Path, event: Any, code: str, visible: bool) -> None:
    async def test(relay: Relay, control: FakeControl) -> None:
        control.sock.close()
        while relay.link.open:
            await asyncio.sleep(0.001)
        told: list[Any] = []
        relay.end = lambda exchange, outcome, code, event: told.append((outcome, code))  # type: ignore[method-assign]
        stream = SimpleNamespace(number=3, visible=visible, abort=lambda status, code, *more: told.append(code))
        relay.exchanges[3] = stream  # type: ignore[assignment]
        relay.feed(e.FirstToken(1.0, 3))  # says nothing that anybody has to act on
        relay.feed(event)
        assert told == [("cut" if visible else "failed", code), code]

    with_relay(tmp_path, test)
