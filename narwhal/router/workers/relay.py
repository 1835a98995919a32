"""A relay: owns client connections and requests, and does for them what another process commands."""

import asyncio
import logging
import math
import os
import signal
import socket
from collections.abc import Callable
from itertools import count
from typing import Any

import msgspec

from narwhal.control import Settings
from narwhal.control import commands as c
from narwhal.control import events as e
from narwhal.control.admission import Refusal
from narwhal.control.failures import FAILURES
from narwhal.fleet.model import Fleet
from narwhal.router.errors import ServeError
from narwhal.router.exchange import Exchange
from narwhal.router.front import Front
from narwhal.router.journal import RotatingFile
from narwhal.router.metrics import LAG_BOUNDS, STALL_BOUNDS, Histogram, Metrics
from narwhal.router.process import CERTIFICATES_S, HOUSEKEEPING_S, Part, calm_collector
from narwhal.router.reach import Reach, engine_reach
from narwhal.router.requests import Requests, Told
from narwhal.router.rows import RequestRow
from narwhal.router.sockets import TlsServer
from narwhal.router.tenants import Keys, read_keys
from narwhal.router.tls import CertificateError
from narwhal.router.workers import wire
from narwhal.router.workers.link import Link

log = logging.getLogger("narwhal.router")
TOKENS_S = 0.1
"""How old token counts may be in control, in seconds."""
REPORT_S = 1.0
_TOLD_ONLY = frozenset([e.FirstToken, e.TokensObserved])
"""Events whose commands, where there are any, are for others."""
NO_CONTROL = Refusal("no_control", "the router starts again; try again", 1.0, 503)


class Relay(Requests):
    """The requests of one worker. Without control, those that have begun go on and no other is let in."""

    tokens_s = TOKENS_S

    def __init__(self, part: Part, loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
        super().__init__(Settings.of(part.expanded.fleet), loop, Metrics())
        self.link = Link(sock, wire.read_to_relay, self._take, self._lost)
        self.front: Front | None = None
        self.fleet = part.expanded.fleet
        self.keys: Keys
        self.workers: int
        """How many share the port, this one included."""
        self.begun: asyncio.Future[bool] = loop.create_future()
        """Whether control has said to serve; False: it is gone."""
        self.leave = asyncio.Event()
        self.hurry = asyncio.Event()
        """Set when requests are to end at once, after `leave`."""
        self.seconds = math.inf
        """How long they may go on after `leave`."""
        self._part = part
        self._parent = os.getppid()
        self._reach: Reach
        self._reason, self._reduced = "the worker has just begun", False
        self._limited: frozenset[str] = frozenset()
        """Tenants that have limits."""
        self._told_to_leave = False
        self._last: Any = None
        """The last event of the request that is ending."""
        self._asked = 0
        self._questions: dict[int, Told] = {}
        """Those that control has not answered."""
        for kind in (c.Wait, c.StartPrefill, c.StartDecode, c.StartWhole):
            self._do[kind] = self._unless_visible(self._do[kind])
        self._do[wire.Welcome] = self._welcome
        self._do[wire.FleetInForce] = self._use
        self._do[wire.Judgement] = self._judged
        self._do[wire.EngineReachable] = lambda k: self.connect(k.engine, k.url, self._reach)
        self._do[wire.EngineGone] = lambda k: self.disconnect(k.engine)
        self._do[wire.Readiness] = self._be_ready
        self._do[wire.Drain] = self._drain
        self._do[wire.Hurry] = lambda k: self.hurry.set()

    # Towards control

    def feed(self, event: e.AnyEvent) -> None:
        """Send an event to control, with the others of this turn of the loop."""
        link = self.link
        if not link.open:
            self._decide(event)
        elif type(event) is e.RequestArrived:
            exchange = self.exchanges[event.request]
            parsed = exchange.parsed
            arrived = wire.Arrived(event, exchange.request_id.decode("latin1"), parsed.route, parsed.stream)
            link.put((link.seen, arrived))
        elif type(event) in _TOLD_ONLY:
            link.lay((link.seen, event))
        else:
            link.put((link.seen, event))

    def record(self, row: RequestRow) -> None:
        """Send a row to control, which keeps the journal; without control, keep it here."""
        if self.link.open:
            self.link.lay((self.link.seen, wire.Over(row, self._last)))
        else:
            self._keep(row)

    def end(self, exchange: Exchange, outcome: str, code: str, event: e.AnyEvent | None) -> None:
        """A request is over: its row and its last event go together.

        Where its tenant has limits, control is told before the client has its answer.
        """
        self._last = event
        super().end(exchange, outcome, code, None)
        if exchange.tenant in self._limited:
            self.link.flush()

    def foresee_tokens(self, tenant: str, least: int, most: int) -> Refusal | None:
        """Control alone knows: see `ask`."""
        return None

    def ask(self, tenant: str, least_bytes: int, most_bytes: int, told: Told) -> int:
        """Ask control for the refusal that a request meets whatever it says; the number that `told` is given."""
        if not self.link.open:
            return 0
        self._asked += 1
        self._questions[self._asked] = told
        question = wire.Question(self._asked, tenant, self._least_tokens(least_bytes), most_bytes)
        self.link.put((self.link.seen, question))
        return self._asked

    def _judged(self, answer: wire.Judgement) -> None:
        self._questions.pop(answer.number)(answer.number, answer.refusal)

    def unready(self) -> str:
        """Why nothing can be served; empty when it can."""
        return self._reason

    @property
    def reduced(self) -> bool:
        """Whether engines of one role serve both, since the other has none."""
        return self._reduced

    def report(self) -> None:
        """Send what is counted here."""
        front, metrics = self.front, self.metrics
        if front is None or not self.link.open:
            return
        handshakes, open_handshakes = {}, 0
        if isinstance(front.server, TlsServer):
            handshakes, open_handshakes = dict(front.server.handshakes), front.server.open_handshakes
            front.server.handshakes = dict.fromkeys(handshakes, 0)
        connections = len(front.gateway.connections)
        counts = metrics.denied, metrics.refused_unread, handshakes
        lag, stall = metrics.lag, metrics.stall
        report = wire.Report(connections, open_handshakes, *counts, lag.counts, lag.total, stall.counts, stall.total)
        self.link.put((self.link.seen, report))
        metrics.denied, metrics.refused_unread = {}, {}
        metrics.lag, metrics.stall = Histogram(LAG_BOUNDS), Histogram(STALL_BOUNDS)

    # What control says

    def _take(self, batch: wire.Batch) -> None:
        for message in batch:
            try:
                self._do[type(message)](message)
            except Exception as error:  # one that goes wrong must not cost the others
                self.loop.call_exception_handler({"message": "a message of control", "exception": error})

    def _unless_visible(self, carry_out: Callable[[Any], None]) -> Callable[[Any], None]:
        """Control sends a request elsewhere whose first token has just gone out: the two crossed, and it must end."""

        def carry_out_unless_visible(command: Any) -> None:
            exchange = self.exchanges.get(command.request)
            if exchange is None or not exchange.relaying:
                carry_out(command)
                return
            exchange.drop()
            engine = getattr(command, "engine", "")
            self.feed(e.LegFailed(self.now(), exchange.number, exchange.leg, engine, "stream", visible=True))

        return carry_out_unless_visible

    def _welcome(self, message: wire.Welcome) -> None:
        self.numbers, self.workers = count(message.first, message.step), message.step

    def _use(self, message: wire.FleetInForce) -> None:
        """Go by a fleet file; what it names outside is read again."""
        fleet = Fleet.model_validate_json(message.document)
        try:
            keys, reach = read_keys(fleet.routers.tenants, fleet.model.name), engine_reach(fleet, message.urls)
        except ServeError as error:
            if not self.begun.done():
                self.begun.set_exception(error)
            log.error("worker: %s; the former keys stay valid", error)
            return
        self.fleet, self.keys, self._reach = fleet, keys, reach
        self.settings.take(Settings.of(fleet))
        limited = (t.name for t in fleet.routers.tenants if t.max_concurrency or t.tokens_per_minute)
        self._limited = frozenset(limited)
        logging.getLogger().setLevel(fleet.observability.log_level.upper())
        if self.front is not None:
            self.front.take(fleet, keys)
            self._renew_certificate(fleet)

    def _renew_certificate(self, fleet: Fleet) -> None:
        server = self.front.server if self.front is not None else None
        if not isinstance(server, TlsServer):
            return
        certificate = server.certificate
        try:
            certificate.use(certificate.read(fleet.routers.tls or certificate.now.tls))
        except CertificateError:
            return  # said in the log; control has read the same before

    def _be_ready(self, message: wire.Readiness) -> None:
        self._reason, self._reduced = message.reason, message.reduced
        if not self.leave.is_set():
            self.refusing = message.refusing
        if not self.begun.done():
            self.begun.set_result(True)

    def _drain(self, message: wire.Drain) -> None:
        if not self.begun.done():
            self.begun.set_result(False)  # it never served
        self.seconds = message.seconds
        self.leave.set()

    # Without control

    def _lost(self) -> None:
        """Control is gone: whatever waits for its word is told to come again."""
        if not self.begun.done():
            self.begun.set_result(False)
        if self._told_to_leave:
            self.leave.set()
        if not self.leave.is_set():
            self.refusing, self._reason = NO_CONTROL, NO_CONTROL.code
            log.error("worker: the process that decides is gone; %d streams may finish", len(self.streams))
        for number in list(self._questions):
            self._judged(wire.Judgement(number, NO_CONTROL))
        for exchange in list(self.exchanges.values()):
            if exchange.leg == "prefill" or exchange.up is None:
                self._give_up(exchange)

    def _give_up(self, exchange: Exchange) -> None:
        self.end(exchange, "cut" if exchange.visible else "failed", NO_CONTROL.code, None)
        exchange.abort(NO_CONTROL.status, NO_CONTROL.code, NO_CONTROL.message, NO_CONTROL.retry_after_s)

    def _decide(self, event: e.AnyEvent) -> None:
        """What becomes of a request without control: nothing is tried again."""
        exchange = self.exchanges.get(getattr(event, "request", 0))
        if exchange is None:
            return
        outcome = "cut" if exchange.visible else "failed"
        if isinstance(event, e.LegFailed):
            self.end(exchange, outcome, "upstream", None)
            exchange.abort(502, "upstream", FAILURES[event.cause])
        elif isinstance(event, e.DeadlinePassed):
            self.end(exchange, outcome, "timeout", None)
            exchange.abort(504, "timeout", "the request took too long")
        elif isinstance(event, e.RequestArrived | e.PrefillFinished | e.ResumeReady | e.ResumeFailed):
            self._give_up(exchange)

    def _keep(self, row: RequestRow) -> None:
        """Append a row to the journal. Whole lines are appended at once, so the next control may write there too."""
        file = RotatingFile(self._part.journal_dir / "journal.jsonl", 1 << 62, 1)
        try:
            file.write(msgspec.json.encode(row) + b"\n")
        except OSError as error:
            log.error("worker: a row of the journal is lost: %s", error.strerror)
        finally:
            file.close()

    def told_to_leave(self) -> None:
        """SIGTERM, by whoever started this: without control, let requests finish and end; at once the second time."""
        again, self._told_to_leave = self._told_to_leave, True
        if not self.link.open:  # else control says when, and how long they may take
            (self.hurry if again and self.leave.is_set() else self.leave).set()

    def look_for_parent(self) -> None:
        """Nobody would tell an orphan to leave."""
        if not self.link.open and os.getppid() != self._parent:
            self.leave.set()


async def relay(part: Part, sock: socket.socket) -> None:
    """Serve clients until control says that it is over, or is gone and another takes over. Raises `ServeError`."""
    loop = asyncio.get_running_loop()
    relay = Relay(part, loop, sock)
    loop.add_signal_handler(signal.SIGTERM, relay.told_to_leave)
    await relay.link.start()
    if not await relay.begun:
        return
    front = relay.front = Front(relay, relay.fleet, relay.keys, relay.workers)
    server = await front.open(part.expanded)
    relay.begin()
    if isinstance(server, TlsServer):
        relay.every(CERTIFICATES_S, server.certificate.check)
    relay.every(HOUSEKEEPING_S, front.keep_house)
    relay.every(HOUSEKEEPING_S, relay.look_for_parent)
    relay.every(REPORT_S, relay.report)
    calm_collector()
    relay.link.put((relay.link.seen, wire.Listening()))
    await relay.leave.wait()
    await front.drain(relay.seconds, relay.hurry)
    relay.report()
    relay.stop()
    relay.link.close()
