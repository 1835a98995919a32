"""Control's side of the workers, with a test in place of each worker: raw frames over real sockets."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import uvloop

from narwhal.control import Settings
from narwhal.control import commands as c
from narwhal.control import events as e
from narwhal.control.admission import Refusal
from narwhal.fleet import check_text, expand, load_profile
from narwhal.fleet.model import Fleet, TenantLimits
from narwhal.router.journal import Journal
from narwhal.router.members import engine_curves
from narwhal.router.metrics import Metrics
from narwhal.router.rows import RequestRow
from narwhal.router.workers import wire
from narwhal.router.workers.hub import Hub
from tests.fleet.fleets import BASE


class FakeRelay:
    """The other end of a worker's socket."""

    def __init__(self, hub: Hub, slot: int) -> None:
        self.hub = hub
        control_end, self.sock = socket.socketpair()
        self.sock.setblocking(False)
        self.said: list[Any] = []
        self._frames = wire.Frames(wire.read_to_relay)
        hub.attach(slot, 1000 + slot, control_end)

    def send(self, *messages: Any, seen: int = 99) -> None:
        self.sock.send(wire.frame([(seen, message) for message in messages]))

    async def hear(self, kind: type) -> Any:
        """The next thing of a kind that control says."""
        loop = asyncio.get_running_loop()
        while True:
            for place, message in enumerate(self.said):
                if type(message) is kind:
                    del self.said[: place + 1]
                    return message
            async with asyncio.timeout(60):
                data = await loop.sock_recv(self.sock, 65536)
            assert data
            for batch in self._frames.feed(data):
                self.said += batch

    def arrive(self, number: int, tenant: str = "default") -> None:
        event = e.RequestArrived(self.hub.now(), number, 100, 16, False, tenant, "", self.hub.now())
        self.send(wire.Arrived(event, f"id-{number}", "/v1/completions", True))


def lab() -> Fleet:
    fleet = check_text(BASE).fleet
    assert fleet is not None
    return fleet


def with_hub(test: Callable[[Hub, FakeRelay, FakeRelay], Awaitable[None]], settings: Settings | None = None) -> None:
    """Run a test with a hub of two workers and engines that are live."""

    async def run() -> None:
        fleet = lab()
        journal = Journal(None)
        hub = Hub(settings or Settings.of(fleet), asyncio.get_running_loop(), journal, Metrics(), fleet, 2)
        curves = engine_curves(fleet, load_profile("demo"))
        for engine in expand(fleet).engines:
            hub.feed(e.EngineJoined(hub.now(), engine.id, engine.role, curves, True))
            while not hub.control.pool.engines[engine.id].live:
                hub.feed(e.EngineUp(hub.now(), engine.id, "g"))
        relays = FakeRelay(hub, 0), FakeRelay(hub, 1)
        await test(hub, *relays)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


async def eventually(met: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not met():
            await asyncio.sleep(0.001)


def over(number: int, event: Any) -> wire.Over:
    row = RequestRow(
        number, f"id-{number}", "default", 0.0, "served", "", "/v1/completions", True, False, 100, 16, "a", "b", 0,
        0.1, 0.2, 0.01, 1.0, True,
    )  # fmt: skip
    return wire.Over(row, event)


def test_numbers_are_each_worker_s_own_and_commands_go_to_it() -> None:
    async def test(hub: Hub, zero: FakeRelay, one: FakeRelay) -> None:
        welcomes = [await relay.hear(wire.Welcome) for relay in (zero, one)]
        assert [(w.first, w.step) for w in welcomes] == [(2, 2), (1, 2)]
        zero.arrive(2)
        one.arrive(1)
        assert (await zero.hear(c.StartPrefill)).request == 2
        assert (await one.hear(c.StartPrefill)).request == 1
        assert hub.open_requests == 2

    with_hub(test)


def test_what_crossed_with_another_command_is_dropped() -> None:
    async def test(hub: Hub, zero: FakeRelay, one: FakeRelay) -> None:
        zero.arrive(2)
        first = await zero.hear(c.StartPrefill)
        seen = hub.slots[0].link.sent  # type: ignore[union-attr]
        hub.feed(e.EngineLeft(hub.now(), first.engine))  # the request goes to another engine, at the same time as …
        zero.send(e.PrefillFinished(hub.now(), 2, 100), e.FirstToken(hub.now(), 2), seen=seen)
        again = await zero.hear(c.StartPrefill)
        assert again.engine != first.engine
        one.arrive(1)
        await one.hear(c.StartPrefill)  # both have been taken by now
        request = hub.control.pool.requests[2]
        assert (request.prefill_engine, request.first_token) == (again.engine, False)
        assert hub.open_streams == 0
        zero.send(e.PrefillFinished(hub.now(), 2, 100), seen=hub.slots[0].link.sent)  # type: ignore[union-attr]
        assert (await zero.hear(c.StartDecode)).producer == again.engine

    with_hub(test)


def test_a_deadline_of_all_holds_whatever_crossed() -> None:
    async def test(hub: Hub, zero: FakeRelay, one: FakeRelay) -> None:
        zero.arrive(2)
        await zero.hear(c.StartPrefill)
        zero.send(e.DeadlinePassed(hub.now(), 2, "prefill"), e.DeadlinePassed(hub.now(), 2, "request"), seen=0)
        assert (await zero.hear(c.Abort)).code == "timeout"
        assert not hub.control.pool.requests

    with_hub(test)


def test_an_engine_s_answer_ends_a_request_that_control_sent_elsewhere_meanwhile() -> None:
    async def test(hub: Hub, zero: FakeRelay, one: FakeRelay) -> None:
        zero.arrive(2)
        first = await zero.hear(c.StartPrefill)
        hub.feed(e.EngineLeft(hub.now(), first.engine))
        zero.send(over(2, e.LegFailed(hub.now(), 2, "prefill", first.engine, "client", False, 404)), seen=0)
        await eventually(lambda: not hub.control.pool.requests)
        assert hub.open_requests == 0
        assert hub.metrics.count("served") == 1

    with_hub(test)


def test_a_lost_worker_s_requests_end_and_its_numbers_are_not_given_again() -> None:
    async def test(hub: Hub, zero: FakeRelay, one: FakeRelay) -> None:
        for number in (2, 4):
            zero.arrive(number)
            await zero.hear(c.StartPrefill)
        zero.send(e.PrefillFinished(hub.now(), 2, 100))
        await zero.hear(c.StartDecode)
        zero.send(e.FirstToken(hub.now(), 2), e.TokensObserved(hub.now(), (2,), (5,)))
        await eventually(lambda: hub.open_streams == 1)
        rows: list[RequestRow] = []
        hub.record = rows.append  # type: ignore[method-assign]
        zero.sock.close()
        other = FakeRelay(hub, 0)  # it may be there before the end of the former is known
        await eventually(lambda: not hub.control.pool.requests)
        told = [(r.request, r.id, r.outcome, r.code, r.completion_tokens, r.slo_met) for r in rows]
        assert told == [(2, "id-2", "cut", "worker_lost", 5, False), (4, "id-4", "failed", "worker_lost", 0, False)]
        assert (await other.hear(wire.Welcome)).first == 6
        assert hub.metrics.workers_lost == 1

    with_hub(test)


def test_an_arrival_waits_for_the_end_that_came_before_it() -> None:
    settings = Settings.of(lab())
    settings.tenants = (TenantLimits(name="a", max_concurrency=1),)

    async def test(hub: Hub, zero: FakeRelay, one: FakeRelay) -> None:
        assert hub.control.pool.accounts["a"].max_concurrency == 1
        zero.arrive(2, "a")
        await zero.hear(c.StartPrefill)
        # both are there when the loop looks, in whichever order it takes the sockets
        for _ in range(20):
            one.arrive(1, "a")
            zero.send(over(2, e.RequestFinished(hub.now(), 2, 16, 100)))
            await one.hear(c.StartPrefill)
            zero.arrive(2, "a")
            one.send(over(1, e.RequestFinished(hub.now(), 1, 16, 100)))
            await zero.hear(c.StartPrefill)
        one.arrive(1, "a")
        assert (await one.hear(c.Refuse)).code == "tenant_concurrency"
        one.send(wire.Question(7, "a", 1, 10))
        answer = await one.hear(wire.Judgement)
        assert (answer.number, answer.refusal.code) == (7, "tenant_concurrency")
        zero.send(over(2, e.RequestCancelled(hub.now(), 2)))
        one.send(wire.Question(8, "a", 1, 10))
        assert (await one.hear(wire.Judgement)).refusal is None

    with_hub(test, settings)


def test_a_message_that_cannot_be_taken_costs_no_other() -> None:
    async def test(hub: Hub, zero: FakeRelay, one: FakeRelay) -> None:
        errors: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context["exception"]))
        zero.send(e.TokensObserved(0.0, (2,), ()))
        zero.arrive(2)
        await zero.hear(c.StartPrefill)
        assert [type(error) for error in errors] == [ValueError]

    with_hub(test)


def test_a_router_that_does_not_lead_has_its_workers_refuse() -> None:
    async def test(hub: Hub, zero: FakeRelay, one: FakeRelay) -> None:
        assert (await zero.hear(wire.Readiness)).refusing is None
        hub.refusing = refusal = Refusal("standby", "another one serves", 1.0, 503)
        for relay in (zero, one):
            while (await relay.hear(wire.Readiness)).refusing != refusal:
                pass
        zero.sock.close()
        other = FakeRelay(hub, 0)
        assert (await other.hear(wire.Readiness)).refusing == refusal

    with_hub(test)
