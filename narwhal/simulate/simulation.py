"""The event loop: simulated engines, links and clients around the very `Control` that serves.

Events reach `Control.handle` as the router's shell would send them, and its commands are carried out here. A
handoff crosses the link of its directed pair, one at a time per pair, in `t0 + bytes/bandwidth` seconds.
"""

from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from math import inf
from typing import Any

from narwhal.control import Settings
from narwhal.control import commands as c
from narwhal.control import events as e
from narwhal.control.control import Control
from narwhal.fleet.model import Role
from narwhal.simulate.engine import Engine
from narwhal.simulate.engine_setup import EngineSetup
from narwhal.simulate.faults import Fault, engine_dies, engine_returns, try_pair
from narwhal.simulate.mover import Mover
from narwhal.simulate.request import Place, Request
from narwhal.simulate.workload import Workload

MAX_TOKENS = 4096
"""What clients ask for as `max_tokens`: the true length is not known to control."""
DRAIN_S = 120.0
"""How long a run may go on after the last arrival; what is not over by then has failed."""


class Simulation:
    """A run. `run` goes on to a time or to the end; `requests` and `moves` tell what happened."""

    def __init__(
        self,
        engines: Sequence[EngineSetup],
        settings: Settings,
        workload: Workload,
        *,
        mover: Mover | None = None,
        whole: bool = False,
        cold_s: float = 0.0,
        faults: Sequence[Fault] = (),
        tick_s: float = 1.0,
        listener: Callable[[e.AnyEvent, list[c.AnyCommand]], None] | None = None,
    ) -> None:
        self.control = Control(settings)
        self.settings = settings
        self.workload = workload
        self.mover = mover or Mover()
        self.whole = whole
        self.cold_s = cold_s
        self.tick_s = tick_s
        self.listener = listener
        self.t = 0.0
        self.engines = {setup.id: Engine(setup.id, setup.curves, additive=setup.additive) for setup in engines}
        self.cards: dict[str, list[str]] = {}
        self.card_of = {setup.id: setup.device for setup in engines if setup.device}
        self.requests: list[Request] = []
        self.moves: list[tuple[float, str, Role]] = []
        self.splits: list[tuple[float, int, int]] = []
        """(t, prefill, decode) at the start and after each move."""
        self.decisions: list[c.Decided] = []
        self.open_requests = 0
        self._heap: list[tuple[float, int, Callable[[Any, Any], None], Any, Any]] = []
        self._order = 0
        self._events: deque[e.AnyEvent] = deque()
        self._feeding = False
        self._links: dict[tuple[str, str], float] = {}
        self._turning: Engine | None = None
        self._cold: dict[str, c.MoveRole] = {}
        self.generations: dict[str, int] = {}
        self._do: dict[type, Callable[[Any], None]] = {
            c.Wait: self._wait,
            c.StartPrefill: self._start_prefill,
            c.StartDecode: self._start_decode,
            c.StartWhole: self._start_whole,
            c.Refuse: self._refuse,
            c.Abort: self._abort,
            c.MoveRole: self._move_role,
            c.ProbeEngine: lambda k: self.look(self.engines[k.engine]),
            c.TryPair: lambda k: try_pair(self, k),
            c.CheckEngine: lambda k: self.feed(e.EngineChecked(self.t, k.engine, self.generation_of(k.engine), "")),
            c.EngineChanged: lambda command: None,  # for journals and metrics
            c.PairChanged: lambda command: None,
            c.Decided: self._decided,
        }
        self._begin(engines, faults)

    def _begin(self, engines: Sequence[EngineSetup], faults: Sequence[Fault]) -> None:
        for setup in engines:
            if setup.device:
                self.cards.setdefault(setup.device, []).append(setup.id)
            self.feed(
                e.EngineJoined(
                    0.0,
                    setup.id,
                    setup.role,
                    setup.prior or setup.curves,
                    setup.measured and setup.prior is None,
                    setup.pin,
                    "simulated",
                    setup.device,
                )
            )
            self.feed(e.EngineUp(0.0, setup.id, self.generation_of(setup.id)))
        self.splits.append((0.0, *self.control.pool.split()))
        for fault in faults:
            self.at(fault.down_t, engine_dies, self, fault.engine)
            if fault.up_t < inf:
                self.at(fault.up_t, engine_returns, self, fault.engine)
        self.at(self.tick_s, self._tick)

    # Time

    def at(self, t: float, action: Callable[[Any, Any], None], a: Any = None, b: Any = None) -> None:
        """Call `action(a, b)` at `t`; calls of one moment keep their order."""
        self._order += 1
        heappush(self._heap, (t, self._order, action, a, b))

    def run(self, until: float = inf) -> None:
        """Go on until `until`, or until the workload is over and served."""
        heap, times = self._heap, self.workload.times_s
        limit = min(until, self.workload.seconds + DRAIN_S)
        total = len(times)
        while True:
            next_arrival = times[len(self.requests)] if len(self.requests) < total else inf
            if next_arrival == inf and not self.open_requests and self.t >= self.workload.seconds:
                return
            if heap and heap[0][0] <= next_arrival:
                if heap[0][0] > limit:
                    break
                self.t, _, action, a, b = heappop(heap)
                action(a, b)
            elif next_arrival <= limit:
                self.t = next_arrival
                self._arrive()
            else:
                break
        self.t = limit

    def feed(self, event: e.AnyEvent) -> None:
        """Give control an event and carry its commands out; events that follow from them come after."""
        self._events.append(event)
        if self._feeding:
            return
        self._feeding = True
        events, handle, do = self._events, self.control.handle, self._do
        while events:
            event = events.popleft()
            commands = handle(event)
            if self.listener is not None:
                self.listener(event, commands)
            for command in commands:
                do[type(command)](command)
        self._feeding = False

    # Clients and the clock

    def _arrive(self) -> None:
        number = len(self.requests)
        workload = self.workload
        request = Request(number, self.t, workload.prompts[number], workload.outputs[number])
        self.requests.append(request)
        self.open_requests += 1
        self.mover.arriving(self, request)
        most = max(request.output_tokens, MAX_TOKENS)
        self.feed(e.RequestArrived(self.t, number, request.prompt_tokens, most, self.whole, workload.tenant(number)))

    def _tick(self, _a: None, _b: None) -> None:
        t = self.t
        for engine in self.engines.values():
            if not engine.alive:
                self.look(engine)
                continue
            self._report_tokens(engine)
            self.feed(e.EngineObserved(t, engine.id, *engine.load(t)))
        self.feed(e.Tick(t))
        self.mover.tick(self)
        self.at(t + self.tick_s, self._tick)

    def _report_tokens(self, engine: Engine) -> None:
        now = engine.produced(self.t)
        streams = [request for request in engine.streams.values() if request.seen_iteration < now]
        if not streams:
            return
        tokens = tuple([now - request.seen_iteration for request in streams])
        for request in streams:
            request.seen_iteration = now
        self.feed(e.TokensObserved(self.t, tuple([request.id for request in streams]), tokens))

    # Engines

    def _go(self, engine: Engine) -> None:
        """Work may have come to an engine: begin transfers, and its next iteration when it may."""
        if engine.taken:
            for request in engine.taken:
                self._transfer(request, engine)
            engine.taken.clear()
        if engine is self._turning:
            return
        if engine.idle:
            if engine.id in self.card_of:
                self._share(engine)
            if engine.start(self.t):
                self.at(engine.turn_t, self._turn, engine, engine.version)
        elif (engine.prefills or engine.ready) and engine.interrupt(self.t):
            self.at(engine.turn_t, self._turn, engine, engine.version)

    def _share(self, engine: Engine) -> None:
        """Engines of one card were profiled with all of them busy: less company, less time."""
        group = self.cards[self.card_of[engine.id]]
        busy = 1 + sum(not self.engines[other].idle for other in group if other != engine.id)
        engine.slow = busy / len(group)

    def _turn(self, engine: Engine, version: int) -> None:
        if engine.version != version:
            return
        ended = engine.turn()
        self._turning = engine
        t = self.t
        for request in ended.prefilled:
            request.place = Place.HANDOFF
            request.producer, request.producer_tokens = engine.id, request.need_tokens
            self.mover.prefilled(self, request)
            self.feed(e.PrefillFinished(t, request.id, request.prompt_tokens, self.generation_of(engine.id)))
        for request in ended.first:
            request.awaits = ""
            if request.first_t < 0:
                request.first_t = t
                self.feed(e.FirstToken(t, request.id))
        for request in ended.finished:
            request.finished_t = t
            self._over(request, "served")
            self.feed(e.RequestFinished(t, request.id, request.total_tokens, request.prompt_tokens))
        self._turning = None
        self._go(engine)
        if engine.id in self._cold and engine.empty:
            self._cold_restart(engine)

    def _transfer(self, request: Request, engine: Engine) -> None:
        if engine.id in self.card_of:  # what the card does meanwhile is planned once this moment is over
            self.at(self.t, self._move_kv, request, request.leg)
        else:
            self._move_kv(request, request.leg)

    def _move_kv(self, request: Request, leg: int) -> None:
        if request.leg != leg:
            return
        pair = (request.producer, request.engine)
        start_t = max(self.t, self._links.get(pair, 0.0))
        alone_s = self.engines[request.producer].curves.transfer_s(request.prompt_tokens)
        self._links[pair] = start_t + self._in_company_s(request.engine, start_t, alone_s)
        self.at(self._links[pair], self._landed, request, leg)

    def _in_company_s(self, engine_id: str, start_t: float, alone_s: float) -> float:
        """A transfer that begins at `start_t` on a card whose other engines compute prompts: the card's time is shared.

        Handoffs are profiled on idle engines. Beside one prompt they went at half speed (H200, 2026-11-30).
        """
        others = self.cards.get(self.card_of.get(engine_id, ""), ())
        ends = [self.engines[other].turn_t for other in others if other != engine_id and self.engines[other].work]
        busy_s = max(ends, default=start_t) - start_t
        if busy_s <= 0:
            return alone_s
        share = 1 / (1 + len(ends))
        return alone_s / share if alone_s <= busy_s * share else alone_s + busy_s * (1 - share)

    def _landed(self, request: Request, leg: int) -> None:
        if request.leg != leg:
            return
        self._unpin(request)
        engine = self.engines[request.engine]
        engine.arrived(request)
        self._go(engine)

    def _unpin(self, request: Request) -> None:
        """The producer may forget the KV of a request's leg 1."""
        if request.producer_tokens:
            producer = self.engines[request.producer]
            producer.release(request.producer_tokens, self.t)
            request.producer_tokens = 0
            self._go(producer)

    # Commands

    def _wait(self, command: c.Wait) -> None:
        request = self.requests[command.request]
        if command.what != "seat":
            self._recall(request)
        self._arm(request, command.what, command.until)

    def _start_prefill(self, command: c.StartPrefill) -> None:
        request = self.requests[command.request]
        self._recall(request)
        self._arm(request, "prefill", command.until)
        self._send(request, command.engine, "prefill")

    def _start_whole(self, command: c.StartWhole) -> None:
        request = self.requests[command.request]
        cached = request.producer == command.engine and request.producer_tokens > 0
        self._recall(request)
        request.cached_tokens = request.prompt_tokens - 1 if cached else 0
        self._arm(request, "first_token", command.until)
        self._send(request, command.engine, "whole")

    def _start_decode(self, command: c.StartDecode) -> None:
        request = self.requests[command.request]
        self._arm(request, "first_token", command.until)
        if not request.producer_tokens:
            self.feed(e.LegFailed(self.t, request.id, "decode", command.engine, "handoff"))
            return
        self._send(request, command.engine, "decode")

    def _send(self, request: Request, engine_id: str, leg: e.Leg) -> None:
        engine = self.engines[engine_id]
        if not engine.alive:
            self.feed(e.LegFailed(self.t, request.id, leg, engine_id, "connection", request.first_t >= 0))
            return
        request.engine, request.sent = engine_id, leg
        if leg == "decode":
            engine.add_stream(request, self.t)
        else:
            engine.add_prompt(request, self.t, whole=leg == "whole")
        self._go(engine)

    def _recall(self, request: Request) -> None:
        """Take a request off whatever holds anything for it, so that it can begin again."""
        request.leg += 1
        if request.engine and request.place not in (Place.ROUTER, Place.HANDOFF, Place.OVER):
            engine = self.engines[request.engine]
            if engine.alive:
                visible = request.produced_at(engine.produced(self.t)) if request.id in engine.streams else 0
                engine.remove(request, self.t)
                request.produced = max(request.produced, visible)
                self._go(engine)
        request.place = Place.ROUTER
        request.engine = ""
        self._unpin(request)
        request.restart()

    def _arm(self, request: Request, what: str, until: float) -> None:
        request.leg += 1
        request.awaits = what
        if until < inf:
            self.at(until, self._deadline, request, request.leg)

    def _deadline(self, request: Request, leg: int) -> None:
        if request.leg == leg and request.awaits and not request.outcome:
            what: Any = request.awaits
            self.feed(e.DeadlinePassed(self.t, request.id, what))

    def _refuse(self, command: c.Refuse) -> None:
        request = self.requests[command.request]
        self._recall(request)
        self._over(request, "refused" if command.status in (429, 503) else "failed")

    def _abort(self, command: c.Abort) -> None:
        request = self.requests[command.request]
        self._recall(request)
        self._over(request, "failed")

    def _over(self, request: Request, outcome: str) -> None:
        if request.outcome:
            return
        request.outcome = outcome
        request.place = Place.OVER
        request.leg += 1
        self.open_requests -= 1

    def _decided(self, command: c.Decided) -> None:
        self.decisions.append(command)

    def _move_role(self, command: c.MoveRole) -> None:
        if self.cold_s <= 0:
            self._moved(command)
            return
        self._cold[command.engine] = command
        if self.engines[command.engine].empty and self.engines[command.engine] is not self._turning:
            self._cold_restart(self.engines[command.engine])

    def _cold_restart(self, engine: Engine) -> None:
        """The engine is empty: it is started anew in its other role."""
        self.at(self.t + self.cold_s, lambda command, _: self._moved(command), self._cold.pop(engine.id))

    def _moved(self, command: c.MoveRole) -> None:
        self.feed(e.RoleMoved(self.t, command.engine, command.role, command.epoch))
        self.moves.append((self.t, command.engine, command.role))
        self.splits.append((self.t, *self.control.pool.split()))

    def look(self, engine: Engine) -> None:
        """Look at an engine, as the router's health checks do."""
        if engine.alive:
            self.feed(e.EngineUp(self.t, engine.id, self.generation_of(engine.id)))
        else:
            self.feed(e.EngineDown(self.t, engine.id, "connection", hard=True))

    def generation_of(self, engine_id: str) -> str:
        """Name of the engine's present process."""
        return f"{engine_id}#{self.generations.get(engine_id, 0)}"
