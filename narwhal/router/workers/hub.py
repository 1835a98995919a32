"""Control's side of the workers: one shell, whose requests are other processes'."""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

from narwhal.control import Control, Settings
from narwhal.control import commands as c
from narwhal.control import events as e
from narwhal.control.admission import Refusal
from narwhal.fleet.model import Fleet
from narwhal.router.journal import Journal
from narwhal.router.metrics import Metrics
from narwhal.router.reach import Reach
from narwhal.router.requests import STOPPING
from narwhal.router.rows import RequestRow
from narwhal.router.shell import Shell
from narwhal.router.workers import wire
from narwhal.router.workers.link import Link

log = logging.getLogger("narwhal.router")
LOOK_S = 1.0
"""How often workers are looked at; they report as often."""
HUNG_LOOKS = 15
"""Looks in a row without a report after which a worker hangs."""
LOST = "worker_lost"
"""Code of requests whose worker died."""
_OF_ALL = ("gap", "request")
"""Deadlines that hold whatever control has said."""


class _Open:
    """A request that a worker has."""

    __slots__ = ("arrived", "last", "streams")

    def __init__(self, arrived: wire.Arrived) -> None:
        self.arrived = arrived
        self.last = 0
        """The frame that brings the last command for it."""
        self.streams = False
        """Whether its first token is out."""


class Worker:
    """A relay, as control knows it."""

    def __init__(self, slot: int, pid: int) -> None:
        self.slot = slot
        self.pid = pid
        self.link: Link
        self.open: dict[int, _Open] = {}
        self.listening = False
        self.connections = 0
        self.open_handshakes = 0
        self.silent = 0
        """Looks since its last report."""

    def document(self) -> dict[str, int]:
        """What the router's state says of it."""
        streams = sum(request.streams for request in self.open.values())
        return {"pid": self.pid, "connections": self.connections, "requests": len(self.open), "streams": streams}


class Hub(Shell):
    """Drives one `Control` for the requests of `count` workers: a number belongs to the worker `number % count`."""

    def __init__(
        self,
        settings: Settings,
        loop: asyncio.AbstractEventLoop,
        journal: Journal,
        metrics: Metrics,
        fleet: Fleet,
        count: int,
    ) -> None:
        self.slots: list[Worker | None] = [None] * count
        self._reason, self._reduced = "no engine is live", False
        super().__init__(settings, loop, journal, metrics)
        self.begun = asyncio.Event()
        """Set once every worker has accepted clients."""
        self.handshakes = {"done": 0, "failed": 0, "timeout": 0}
        self._fleet = fleet
        self._urls: dict[str, str] = {}
        self._next = [slot or count for slot in range(count)]
        """The next number of each worker's requests: what one had is not given again to the one after it."""
        self._late: dict[int, e.RequestArrived] = {}
        """Arrivals that wait until whatever happened before them is known."""
        self._awaited: dict[int, tuple[int, socket.socket]] = {}
        """Workers that begin once the end of the one before is known, by slot."""
        self._starting: set[asyncio.Task[None]] = set()
        self._on: dict[type, Callable[[Worker, int, Any], None]] = {
            wire.Arrived: self._arrived,
            wire.Listening: self._listens,
            wire.Question: self._asked,
            wire.Report: self._add,
            e.PrefillFinished: self._of_a_leg,
            e.FirstToken: self._of_a_leg,
            e.LegFailed: self._of_a_leg,
            e.ResumeReady: self._of_a_leg,
            e.ResumeFailed: self._of_a_leg,
            e.DeadlinePassed: self._of_a_leg,
            e.TokensObserved: self._observed,
            wire.Over: self._over,
        }
        for kind in (c.Wait, c.StartPrefill, c.StartDecode, c.StartWhole, c.Resume, c.Refuse, c.Abort):
            self._do[kind] = self._pass_on

    # Workers

    def begin(self) -> None:
        """Begin to look at time, and at the workers."""
        super().begin()
        self.every(LOOK_S, self._look_for_hung)

    def attach(self, slot: int, pid: int, sock: socket.socket) -> None:
        """A worker was started; this is the socket to it."""
        if self.slots[slot] is not None:
            self._awaited[slot] = pid, sock
            return
        worker = self.slots[slot] = Worker(slot, pid)
        link = worker.link = Link(
            sock, wire.read_from_relay, lambda batch: self._take(worker, batch), lambda: self._lost(worker)
        )
        link.put(wire.Welcome(self._next[slot], len(self.slots)))
        link.put(self._in_force())
        for engine, url in self._urls.items():
            link.put(wire.EngineReachable(engine, url))
        link.put(wire.Readiness(self._reason, self.refusing, self._reduced))
        task = self.loop.create_task(link.start())
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    @property
    def present(self) -> Iterator[Worker]:
        """The workers that there are."""
        return (worker for worker in self.slots if worker is not None)

    def tell_all(self, message: wire.Message) -> None:
        """Send something to every worker."""
        for worker in self.present:
            worker.link.put(message)

    @property
    def refusing(self) -> Refusal | None:
        """Why no new request is let in; None: they are. Workers are told."""
        return self._refusing

    @refusing.setter
    def refusing(self, refusal: Refusal | None) -> None:
        self._refusing = refusal
        self.tell_all(wire.Readiness(self._reason, refusal, self._reduced))

    def use(self, fleet: Fleet) -> None:
        """Have every worker go by this fleet file."""
        self._fleet = fleet
        self.tell_all(self._in_force())

    def _in_force(self) -> wire.FleetInForce:
        return wire.FleetInForce(self._fleet.model_dump_json(by_alias=True), list(self._urls.values()))

    def _lost(self, worker: Worker) -> None:
        """A worker is gone: what it had is over."""
        self.slots[worker.slot] = None
        now = self.now()
        if self.refusing is not STOPPING:
            self.metrics.workers_lost += 1
        for number, request in worker.open.items():
            self._let_in(number)
            self.record(self._row(number, request, now))
            self.feed(e.RequestCancelled(now, number))
        worker.open.clear()
        if worker.slot in self._awaited:
            self.attach(worker.slot, *self._awaited.pop(worker.slot))

    def _row(self, number: int, request: _Open, now: float) -> RequestRow:
        """The row of a request whose worker could not write it."""
        arrived, known = request.arrived, self.control.pool.requests.get(number)
        event = arrived.event
        return RequestRow(
            request=number,
            id=arrived.id,
            tenant=event.tenant,
            arrived_t=event.started_t,
            outcome="cut" if request.streams else "failed",
            code=LOST,
            route=arrived.route,
            stream=arrived.stream,
            whole=event.whole,
            prompt_tokens=known.prompt_tokens if known else event.prompt_tokens,
            completion_tokens=known.produced if known else 0,
            prefill_engine=known.prefill_engine if known else "",
            decode_engine=known.decode_engine if known else "",
            retries=known.attempts if known else 0,
            prefilled_s=None,
            ttft_s=None,
            tpot_s=None,
            total_s=now - event.started_t,
            slo_met=False,
            continued=known.resumed if known else 0,
            gap_s=None,
            queued_s=None,
        )

    # What they say

    def _take(self, worker: Worker, batch: wire.Batch) -> None:
        for seen, message in batch:
            try:
                self._on[type(message)](worker, seen, message)
            except Exception as error:  # one message that goes wrong must not cost a worker
                self.loop.call_exception_handler({"message": "a worker's message", "exception": error})

    def _listens(self, worker: Worker, seen: int, message: wire.Listening) -> None:
        worker.listening = True
        if all(other is not None and other.listening for other in self.slots):
            self.begun.set()

    def _arrived(self, worker: Worker, seen: int, message: wire.Arrived) -> None:
        event = message.event
        worker.open[event.request] = _Open(message)
        self._next[worker.slot] = event.request + len(self.slots)
        self.metrics.arrived(event.tenant, declared=bool(self.settings.tenants))
        if not self.settings.tenants or self.control.pool.accounts[event.tenant].max_concurrency is None:
            self.feed(event)
            return
        self._late[event.request] = event
        self._after_others(self._let_in, event.request)

    def _after_others(self, action: Callable[..., None], *arguments: Any) -> None:
        """Do something once all is known that happened before.

        A client that has its answer may ask again at another worker. The end of its first request was sent before the
        answer was, so it is read at the latest when all sockets have been looked at once more.
        """
        self.loop.call_soon(self.loop.call_soon, action, *arguments)

    def _let_in(self, number: int) -> None:
        event = self._late.pop(number, None)
        if event is not None:
            self.feed(event)

    def _asked(self, worker: Worker, seen: int, question: wire.Question) -> None:
        self._after_others(self._judge, worker, question)

    def _judge(self, worker: Worker, question: wire.Question) -> None:
        refusal = self.foresee_tokens(question.tenant, question.least, question.most)
        worker.link.put(wire.Judgement(question.number, refusal))

    def _of_a_leg(self, worker: Worker, seen: int, event: Any) -> None:
        """Something happened to a leg; it means nothing once control has said something else for its request."""
        number = event.request
        if self._late:
            self._let_in(number)
        request = worker.open.get(number)
        if request is not None and (seen >= request.last or getattr(event, "what", "") in _OF_ALL):
            if type(event) is e.FirstToken:
                request.streams = True
            self.feed(event)

    def _over(self, worker: Worker, seen: int, over: wire.Over) -> None:
        """A request has ended: it is over, whatever control planned meanwhile."""
        number, event = over.row.request, over.event
        if self._late:
            self._let_in(number)
        worker.open.pop(number, None)
        self.record(over.row)
        if event is not None:
            self.feed(event)
            if number in self.control.pool.requests:
                self.feed(e.RequestCancelled(event.t, number))

    def _observed(self, worker: Worker, seen: int, event: e.TokensObserved) -> None:
        self.feed(event)

    def _look_for_hung(self) -> None:
        """A worker that says nothing any more serves nobody: kill it, and another takes its place.

        Counted in looks, not by the clock: whoever stopped all of us does not have every worker killed.
        """
        for worker in self.present:
            worker.silent += worker.listening
            if worker.silent == HUNG_LOOKS:
                log.error("worker %d (pid %d) hangs: it is killed", worker.slot, worker.pid)
                self.metrics.workers_hung += 1
                os.kill(worker.pid, signal.SIGKILL)

    def _add(self, worker: Worker, seen: int, report: wire.Report) -> None:
        worker.silent = 0
        worker.connections, worker.open_handshakes = report.connections, report.open_handshakes
        metrics = self.metrics
        for counts, more in (
            (metrics.denied, report.denied),
            (metrics.refused_unread, report.refused_unread),
            (self.handshakes, report.handshakes),
        ):
            for code, number in more.items():
                counts[code] = counts.get(code, 0) + number
        metrics.lag.add(report.lag, report.lag_s)
        metrics.stall.add(report.stalls, report.stalls_s)

    # What they are told

    def adopt(self, control: Control) -> None:
        """Drive another control, which knows nothing of the requests that workers have: they end."""
        for worker in self.present:
            for number in list(worker.open):
                self._pass_on(c.Abort(number, STOPPING.status, STOPPING.code, STOPPING.message))
        super().adopt(control)

    def _pass_on(self, command: Any) -> None:
        """Hand a command to the worker whose request it is about; nobody waits for it where that is gone."""
        worker = self.slots[command.request % len(self.slots)]
        request = worker.open.get(command.request) if worker is not None else None
        if worker is not None and request is not None:
            request.last = worker.link.sent + 1
            worker.link.put(command)

    def connect(self, engine: str, url: str, reach: Reach) -> None:
        """Have connections to an engine, here for looks and in every worker for requests."""
        super().connect(engine, url, reach)
        self._urls[engine] = url
        self.tell_all(wire.EngineReachable(engine, url))

    def disconnect(self, engine: str) -> None:
        """Have no more connections to an engine."""
        super().disconnect(engine)
        del self._urls[engine]
        self.tell_all(wire.EngineGone(engine))

    def _tick(self) -> None:
        super()._tick()
        self._say_readiness()

    def _engine_changed(self, command: c.EngineChanged) -> None:
        super()._engine_changed(command)
        self._say_readiness()

    def _say_readiness(self) -> None:
        now = super().unready(), self.reduced
        if now != (self._reason, self._reduced):
            self._reason, self._reduced = now
            self.tell_all(wire.Readiness(self._reason, self.refusing, self._reduced))

    # What is known of all of them

    def unready(self) -> str:
        """Why nothing can be served; empty when it can."""
        if not self.begun.is_set():
            return "the workers are starting"
        return super().unready() if any(worker.listening for worker in self.present) else "no worker accepts clients"

    @property
    def workers(self) -> list[dict[str, int]]:
        """The workers, for the router's state."""
        return [worker.document() for worker in self.present]

    @property
    def worker_pids(self) -> dict[int, int]:
        """The workers' processes, by slot."""
        return {worker.slot: worker.pid for worker in self.present}

    @property
    def connections(self) -> int:
        """Connections of clients that are open, up to a second ago."""
        return sum(worker.connections for worker in self.present)

    @property
    def open_requests(self) -> int:
        """Requests between arrival and end."""
        return sum(len(worker.open) for worker in self.present)

    @property
    def open_streams(self) -> int:
        """Streams whose first token is out."""
        return sum(request.streams for worker in self.present for request in worker.open.values())
