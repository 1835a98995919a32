"""The thin shell around `Control`: real time and sockets. Events in, commands carried out, rows written."""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable
from typing import Any

import narwhal
from narwhal.control import Control, Settings
from narwhal.control import commands as c
from narwhal.control import events as e
from narwhal.control.admission import Refusal
from narwhal.control.records import Decision
from narwhal.control.snapshot import Cut, Snapshot
from narwhal.engine.dialect import VllmDialect
from narwhal.router.deadlines import Deadlines
from narwhal.router.door import Parsed
from narwhal.router.exchange import Exchange
from narwhal.router.http import Connection
from narwhal.router.journal import Journal, StateLine
from narwhal.router.metrics import Metrics
from narwhal.router.rows import ChangeRow, DecisionRow, RequestRow
from narwhal.router.tenants import DEFAULT
from narwhal.router.upstream import Pool

SWEEP_S = 0.05
"""How often deadlines are looked at; they come late by at most twice this."""
REQUEST_SLOT_S = 1.0
"""How late the deadline of a whole request may come."""
TOKENS_S = 0.25
"""How often tokens are reported to control and stalled streams are looked for."""
TICK_S = 0.25
DECISIONS_KEPT = 256
log = logging.getLogger("narwhal.router")


class Shell:
    """Drives one `Control`. Everything runs on one loop, so nothing here locks."""

    def __init__(self, settings: Settings, loop: asyncio.AbstractEventLoop, journal: Journal, metrics: Metrics) -> None:
        self.loop = loop
        self.control = Control(settings)
        self.settings = self.control.settings
        """Those that are in force."""
        self.journal = journal
        journal.snapshot = self._snapshot
        self.metrics = metrics
        self.dialect = VllmDialect()
        self.pools: dict[str, Pool] = {}
        self.exchanges: dict[int, Exchange] = {}
        self.streams: dict[int, Exchange] = {}
        """Those whose first token is out."""
        self.now: Callable[[], float] = loop.time
        """Seconds on the loop's monotonic clock."""
        self.deadlines = Deadlines(self.now(), SWEEP_S)
        """What a request waits for at present."""
        self.limits = Deadlines(self.now(), REQUEST_SLOT_S)
        """How long requests may take as a whole."""
        self.decisions: deque[Decision] = deque(maxlen=DECISIONS_KEPT)
        self.recent: deque[tuple[float, bool]] = deque()
        """(end, within both targets) of offered requests in the last minute."""
        self.probe: Callable[[str], None] = lambda engine: None
        self.left: Callable[[str], None] = lambda engine: None
        """Told of an engine that control let go."""
        self.draining = False
        self._tokens_per_byte = 0.25
        self._events: deque[e.AnyEvent] = deque()
        self._feeding = False
        self._number = 0
        self._stalled: dict[int, tuple[int, float]] = {}
        self._timers: list[asyncio.TimerHandle] = []
        self._do: dict[type, Callable[[Any], None]] = {
            c.Wait: self._wait,
            c.StartPrefill: self._start_prefill,
            c.StartDecode: lambda k: self._start_answer(k, "decode"),
            c.StartWhole: lambda k: self._start_answer(k, "whole"),
            c.Refuse: self._refuse,
            c.Abort: self._abort,
            c.MoveRole: self._move_role,
            c.ProbeEngine: lambda k: self.probe(k.engine),
            c.EngineChanged: self._engine_changed,
            c.Decided: self._decided,
        }

    # Time

    def begin(self) -> None:
        """Start the sweeps and the ticks."""
        self.every(SWEEP_S, self._sweep_deadlines)
        self.every(TOKENS_S, self._sweep_streams)
        self.every(TICK_S, lambda: self.feed(e.Tick(self.now())))

    def stop(self) -> None:
        """Stop them, and close every connection to engines."""
        for timer in self._timers:
            timer.cancel()
        for pool in self.pools.values():
            pool.close()

    def every(self, seconds: float, action: Callable[[], Any]) -> None:
        """Do something again and again, until `stop`."""
        slot = len(self._timers)

        def run() -> None:
            before = self.now()
            self._timers[slot] = self.loop.call_later(seconds, run)
            self.metrics.loop_lag(max(before - due[0] - seconds, 0.0))
            due[0] = before
            action()

        due = [self.now()]
        self._timers.append(self.loop.call_later(seconds, run))

    # Events and commands

    def feed(self, event: e.AnyEvent) -> list[c.AnyCommand]:
        """Give control an event and carry out what it says. Events that arise meanwhile are taken in turn."""
        events = self._events
        if self._feeding:
            events.append(event)
            return []
        self._feeding = True
        try:
            self.journal.event(event)
            first = commands = self.control.handle(event)
            while True:
                for command in commands:
                    self._do[type(command)](command)
                if not events:
                    return first
                event = events.popleft()
                self.journal.event(event)
                commands = self.control.handle(event)
        finally:
            self._feeding = False

    def _snapshot(self, t: float) -> StateLine:
        """What control knows now, for the journal: the cut is taken here, its thread makes the rest."""
        cut, settings = Cut(self.control), self.control.settings.copy()
        return lambda pause: Snapshot(t, narwhal.__version__, settings.document(), cut.state(pause))

    def later(self, event: e.AnyEvent) -> None:
        """Give control an event after the present one."""
        self.feed(event)

    # Requests

    def arrived(
        self, connection: Connection, parsed: Parsed, request_id: bytes, started_t: float, tenant: str = DEFAULT
    ) -> None:
        """A request passed the door."""
        self._number += 1
        exchange = Exchange(self, connection, parsed, request_id, self._number)
        connection.serving = exchange
        now = self.now()
        exchange.arrived_t = started_t or now
        exchange.tenant = tenant
        tokens = parsed.prompt_tokens or max(int(parsed.prompt_bytes * self._tokens_per_byte), 1)
        exchange.prompt_tokens = parsed.prompt_tokens
        self.exchanges[self._number] = exchange
        self.metrics.offered += 1
        request_s = self.settings.serving.deadlines.request_s
        if request_s > 0:
            exchange.limit = self.limits.arm(self._number, "request", exchange.arrived_t + request_s)
        self.feed(
            e.RequestArrived(
                now, self._number, tokens, parsed.max_tokens, parsed.whole, tenant, "", exchange.arrived_t,
                parsed.priority,
            )
        )  # fmt: skip

    def foresee(self, tenant: str, least_bytes: int, most_bytes: int) -> Refusal | None:
        """The refusal that a request meets whatever its body says, of which only the size is known.

        A byte is a token at the most. How many it is at the least is learnt from prompts, and taken by a quarter, so
        that a body with more besides its prompt than others have is not refused for it.
        """
        if self.draining:
            return Refusal("stopping", "the router is stopping", 1.0, 503)
        least = int(least_bytes * self._tokens_per_byte / 4)
        return self.control.foresee(self.now(), tenant, least, most_bytes)

    def learn_prompt(self, parsed: Parsed, prompt_tokens: int) -> None:
        """Correct the estimate of tokens for each byte of JSON with a prompt whose length is known now."""
        if parsed.prompt_bytes and prompt_tokens:
            self._tokens_per_byte += 0.05 * (min(prompt_tokens / parsed.prompt_bytes, 1.0) - self._tokens_per_byte)

    def first_token(self, exchange: Exchange) -> None:
        """The first token of a stream is on its way to the client."""
        self.streams[exchange.number] = exchange
        self._disarm(exchange)
        self.feed(e.FirstToken(exchange.first_t, exchange.number))

    def end(self, exchange: Exchange, outcome: str, code: str, event: e.AnyEvent | None) -> None:
        """A request is over: one row in the journal, and the last event about it."""
        if exchange.over:
            return
        exchange.over = True
        number = exchange.number
        if exchange.connection is not None:
            exchange.connection.serving = None
        self.exchanges.pop(number, None)
        if self.streams.pop(number, None) is not None:
            self._stalled.pop(number, None)
        self._disarm(exchange)
        if exchange.limit is not None:
            exchange.limit.pop(number, None)
        exchange.last_t = exchange.last_t or self.now()
        self._count(exchange, outcome, code)
        if event is not None:
            self.feed(event)
        exchange.connection = exchange.connection if outcome in ("served", "refused", "failed", "cut") else None

    def _count(self, exchange: Exchange, outcome: str, code: str) -> None:
        parsed, arrived_t, first_t, last_t = exchange.parsed, exchange.arrived_t, exchange.first_t, exchange.last_t
        tokens, served = exchange.completion_tokens, outcome == "served"
        ttft_s = first_t - arrived_t if first_t else None
        tpot_s = (last_t - first_t) / (tokens - 1) if served and parsed.stream and tokens > 1 else None
        slo = self.settings.slo
        met = served and (ttft_s or 0.0) <= slo.ttft_for(exchange.prompt_tokens) and (tpot_s or 0.0) <= slo.tpot_s
        if outcome != "cancelled":
            self.recent.append((last_t, met))
        self.metrics.ended(outcome, code, ttft_s, tpot_s, tokens)
        prefilled_s = exchange.prefilled_t - arrived_t if exchange.prefilled_t else None
        if self.settings.tenants:
            key = (exchange.tenant, outcome)
            self.metrics.tenants[key] = self.metrics.tenants.get(key, 0) + 1
        self.journal.row(
            RequestRow(  # by place: names would cost as much as all else here
                exchange.number, exchange.request_id.decode("latin1"), exchange.tenant, arrived_t, outcome, code,
                parsed.route, parsed.stream, parsed.whole, exchange.prompt_tokens, tokens, exchange.prefill_engine,
                exchange.decode_engine, exchange.attempts, prefilled_s, ttft_s, tpot_s, last_t - arrived_t, met,
            )
        )  # fmt: skip

    def cancelled(self, exchange: Exchange) -> None:
        """The client left."""
        self.end(exchange, "cancelled", "", e.RequestCancelled(self.now(), exchange.number))

    def stopped(self, exchange: Exchange) -> None:
        """The router stops and can wait no longer: end a request with one clear error."""
        self.end(
            exchange,
            "cut" if exchange.visible else "failed",
            "stopping",
            e.RequestCancelled(self.now(), exchange.number),
        )
        exchange.abort(503, "stopping", "the router is stopping", 1.0)

    def load(self) -> dict[str, float | None]:
        """Projected SLO ratio of each role at the last evaluation (1: at target); None before the first."""
        last = self.control.roles.last
        if last is None or not last.candidates:
            return {"prefill": None, "decode": None}
        now = last.candidates[0]
        return {"prefill": now.ttft, "decode": max(now.tpot, now.queue)}

    # Carrying out

    def _wait(self, command: c.Wait) -> None:
        exchange = self.exchanges.get(command.request)
        if exchange is not None:
            if command.what == "queue":
                exchange.drop()
                exchange.handoff = None
            self._arm(exchange, command.what, command.until)

    def _start_prefill(self, command: c.StartPrefill) -> None:
        exchange = self.exchanges.get(command.request)
        if exchange is not None:
            self._arm(exchange, "prefill", command.until)
            exchange.start("prefill", command.engine)

    def _start_answer(self, command: c.StartDecode | c.StartWhole, leg: e.Leg) -> None:
        exchange = self.exchanges.get(command.request)
        if exchange is not None:
            # nothing of a buffered answer comes before its end: no time to a first token is promised
            self._arm(exchange, "first_token", command.until if exchange.parsed.stream else math.inf)
            exchange.start(leg, command.engine)

    def _arm(self, exchange: Exchange, what: e.Deadline, until: float) -> None:
        self._disarm(exchange)
        exchange.waits_for = what
        exchange.slot = self.deadlines.arm(exchange.number, what, until)

    def _disarm(self, exchange: Exchange) -> None:
        exchange.waits_for = None
        if exchange.slot is not None:
            exchange.slot.pop(exchange.number, None)
            exchange.slot = None

    def _refuse(self, command: c.Refuse) -> None:
        exchange = self.exchanges.get(command.request)
        if exchange is not None:
            exchange.status = command.status
            self.end(exchange, "refused", command.code, None)
            exchange.refuse(command.status, command.code, command.message, command.retry_after_s)

    def _abort(self, command: c.Abort) -> None:
        exchange = self.exchanges.get(command.request)
        if exchange is not None:
            exchange.status = command.status
            self.end(exchange, "cut" if exchange.visible else "failed", command.code, None)
            exchange.abort(command.status, command.code, command.message)

    def _move_role(self, command: c.MoveRole) -> None:
        """The label driver: a role is a label, so a move is done when it is said."""
        self.metrics.moves[command.role] += 1
        self.journal.row(
            ChangeRow(self.now(), command.engine, "moved", f"to {command.role}", command.epoch, command.decision)
        )
        log.info(
            "%s moves to %s (decision %d, epoch %d)", command.engine, command.role, command.decision, command.epoch
        )
        self.later(e.RoleMoved(self.now(), command.engine, command.role, command.epoch))

    def _engine_changed(self, command: c.EngineChanged) -> None:
        self.metrics.changes[command.change] = self.metrics.changes.get(command.change, 0) + 1
        self.journal.row(ChangeRow(self.now(), command.engine, command.change, command.reason))
        level = logging.WARNING if command.change == "ejected" else logging.INFO
        log.log(level, "%s %s: %s", command.engine, command.change, command.reason)
        if command.change == "left":
            self.left(command.engine)

    def _decided(self, command: c.Decided) -> None:
        self.decisions.append(command.decision)
        self.metrics.decisions[command.decision.outcome] = self.metrics.decisions.get(command.decision.outcome, 0) + 1
        self.journal.row(DecisionRow(command.decision))

    # Sweeps

    def _sweep_deadlines(self) -> None:
        now = self.now()
        for number, what in self.deadlines.due(now) + self.limits.due(now):
            self.feed(e.DeadlinePassed(now, number, what))

    def _sweep_streams(self) -> None:
        """Report tokens in one batch, and find streams that stall."""
        now, gap_s = self.now(), self.settings.serving.deadlines.gap_s
        numbers, tokens, stalled = [], [], []
        for number, exchange in self.streams.items():
            new = exchange.frames - exchange.frames_reported
            if new:
                exchange.frames_reported = exchange.frames
                numbers.append(number)
                tokens.append(new)
                self._stalled.pop(number, None)
            elif exchange.connection is None or exchange.connection.slow:
                self._stalled.pop(number, None)  # nothing is read while the client does not
            elif gap_s > 0:
                since = self._stalled.setdefault(number, (exchange.frames, now))[1]
                if now - since > gap_s:
                    stalled.append(number)
        if numbers:
            self.feed(e.TokensObserved(now, tuple(numbers), tuple(tokens)))
        for number in stalled:
            self.feed(e.DeadlinePassed(now, number, "gap"))
        while self.recent and self.recent[0][0] < now - 60:
            self.recent.popleft()
