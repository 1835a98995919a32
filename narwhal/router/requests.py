"""The requests of one process: their clients, legs and deadlines. What becomes of them is for control to say."""

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

from narwhal.control import Settings
from narwhal.control import commands as c
from narwhal.control import events as e
from narwhal.control.admission import Refusal
from narwhal.engine.dialect import VllmDialect
from narwhal.router.deadlines import Deadlines
from narwhal.router.door import Parsed
from narwhal.router.exchange import Exchange
from narwhal.router.http import Connection
from narwhal.router.metrics import Metrics
from narwhal.router.reach import Reach
from narwhal.router.resuming import resume
from narwhal.router.rows import RequestRow
from narwhal.router.slo import within
from narwhal.router.tenants import DEFAULT
from narwhal.router.upstream import Pool

SWEEP_S = 0.05
"""How often deadlines are looked at; they come late by at most twice this."""
TOKENS_S = 0.25
"""How often tokens are reported to control and stalled streams are looked for."""
LEAST_PROMPT_WEIGHT = 0.05
"""What a prompt counts at least in the mean of tokens for each byte: it follows the latest twenty."""
Told = Callable[[int, Refusal | None], None]
"""Given the number of a question and its answer."""
STOPPING = Refusal("stopping", "the router is stopping", 1.0, 503)


class Requests(ABC):
    """Carries out what control commands for requests, and tells it what happens to them.

    Everything runs on one loop, so nothing here locks. How an event reaches control is for subclasses to say.
    """

    tokens_s = TOKENS_S

    def __init__(self, settings: Settings, loop: asyncio.AbstractEventLoop, metrics: Metrics) -> None:
        self.loop = loop
        self.settings = settings
        """Those that are in force."""
        self.metrics = metrics
        self.dialect = VllmDialect()
        self.pools: dict[str, Pool] = {}
        self.exchanges: dict[int, Exchange] = {}
        self.streams: dict[int, Exchange] = {}
        """Those whose first token is out."""
        self.now: Callable[[], float] = loop.time
        """Seconds on the loop's monotonic clock."""
        self.deadlines = Deadlines(self.now(), SWEEP_S)
        self.refusing: Refusal | None = None
        """Why no new request is let in; None: they are."""
        self.numbers: Iterator[int] = count(1)
        self.tokens_per_byte = 0.25
        """Tokens of a prompt for each byte of JSON, as learned from prompts."""
        self._prompt_weight = 0.8
        """What the next prompt counts in it: the first ones soon replace the guess, which may be wrong by half."""
        self._stalled: dict[int, tuple[int, float]] = {}
        self._timers: list[asyncio.TimerHandle] = []
        self._do: dict[type, Callable[[Any], None]] = {
            c.Wait: self._wait,
            c.StartPrefill: self._start_prefill,
            c.StartDecode: self._start_decode,
            c.StartWhole: self._start_whole,
            c.Resume: self._resume,
            c.Refuse: self._refuse,
            c.Abort: self._abort,
        }

    # Towards control

    @abstractmethod
    def feed(self, event: e.AnyEvent) -> object:
        """Give control an event; what it says is carried out now or later."""

    @abstractmethod
    def record(self, row: RequestRow) -> None:
        """Count and keep a request that is over. Its last event follows."""

    @abstractmethod
    def foresee_tokens(self, tenant: str, least: int, most: int) -> Refusal | None:
        """The refusal that a tenant's request meets whatever it says, if its prompt has `least` to `most` tokens."""

    @abstractmethod
    def unready(self) -> str:
        """Why nothing can be served; empty when it can."""

    @property
    @abstractmethod
    def reduced(self) -> bool:
        """Whether engines of one role serve both, since the other has none."""

    def readiness(self) -> tuple[int, dict[str, Any]]:
        """Whether requests can be served: an HTTP status and what to say with it. Nothing of it is about the fleet."""
        reason = self.refusing.code if self.refusing is not None else "no engine is live" if self.unready() else ""
        state = "unready" if reason else "degraded" if self.reduced else "ready"
        return 503 if reason else 200, {"ready": not reason, "state": state, "reason": reason}

    def later(self, event: e.AnyEvent) -> None:
        """Give control an event after the present one."""
        self.feed(event)

    # Time

    def begin(self) -> None:
        """Start the sweeps."""
        self.every(SWEEP_S, self._sweep_deadlines)
        self.every(self.tokens_s, self._sweep_streams)

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

    # Engines

    def connect(self, engine: str, url: str, reach: Reach) -> None:
        """Have connections to an engine."""
        self.pools[engine] = reach.pool(self.loop, url)

    def disconnect(self, engine: str) -> None:
        """Have no more connections to an engine."""
        self.pools.pop(engine).close()

    # Requests

    @property
    def open_requests(self) -> int:
        """Requests between arrival and end."""
        return len(self.exchanges)

    @property
    def open_streams(self) -> int:
        """Streams whose first token is out."""
        return len(self.streams)

    def arrived(
        self, connection: Connection, parsed: Parsed, request_id: bytes, started_t: float, tenant: str = DEFAULT
    ) -> None:
        """A request passed the door."""
        number = next(self.numbers)
        now = self.now()
        arrived_t = started_t or now
        request_s = self.settings.serving.deadlines.request_s
        watch = self.deadlines.watch(number, now, arrived_t + request_s if request_s > 0 else math.inf)
        exchange = Exchange(self, connection, parsed, request_id, number, watch, tenant, arrived_t)
        connection.serving = self.exchanges[number] = exchange
        exchange.prompt_tokens = parsed.prompt_tokens
        tokens = parsed.prompt_tokens or max(int(parsed.prompt_bytes * self.tokens_per_byte), 1)
        self.metrics.arrived(tenant, declared=bool(self.settings.tenants))
        self.feed(
            e.RequestArrived(
                now,
                number,
                tokens,
                parsed.max_tokens,
                parsed.whole,
                tenant,
                "",
                arrived_t,
                parsed.priority,
                parsed.resumable,
            )
        )

    def foresee(self, tenant: str, least_bytes: int, most_bytes: int) -> Refusal | None:
        """The refusal that a request meets whatever its body says, of which only the size is known.

        A byte is a token at the most. How many it is at the least is learnt from prompts, and taken by a quarter, so
        that a body with more besides its prompt than others have is not refused for it.
        """
        if self.refusing is not None:
            return self.refusing
        return self.foresee_tokens(tenant, self._least_tokens(least_bytes), most_bytes)

    def ask(self, tenant: str, least_bytes: int, most_bytes: int, told: Told) -> int:
        """Ask control for the same, where it is in another process: the number that `told` is given; 0: it is not."""
        return 0

    def _least_tokens(self, size: int) -> int:
        return int(size * self.tokens_per_byte / 4)

    def learn_prompt(self, parsed: Parsed, prompt_tokens: int) -> None:
        """Correct the estimate of tokens for each byte of JSON with a prompt whose length is known now."""
        if parsed.prompt_bytes and prompt_tokens:
            found = min(prompt_tokens / parsed.prompt_bytes, 1.0)
            self.tokens_per_byte += self._prompt_weight * (found - self.tokens_per_byte)
            self._prompt_weight = max(self._prompt_weight / (1 + self._prompt_weight), LEAST_PROMPT_WEIGHT)

    def first_token(self, exchange: Exchange, now: float) -> None:
        """The first token of a stream, or of its rest, is on its way to the client."""
        self.streams[exchange.number] = exchange
        exchange.watch.disarm()
        self.feed(e.FirstToken(now, exchange.number))

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
        exchange.watch.over = True
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
        slo, whole_tokens = self.settings.slo, 0 if parsed.stream else tokens
        met = served and within(slo, exchange.prompt_tokens, ttft_s, tpot_s, whole_tokens=whole_tokens)
        prefilled_t, continued, gap_s = exchange.prefilled_t, 0, None
        if exchange.resumed is not None:
            prefilled_t, continued, gap_s = exchange.resumed.figures
        prefilled_s = prefilled_t - arrived_t if prefilled_t else None
        self.record(
            RequestRow(  # by place: names would cost as much as all else here
                exchange.number, exchange.request_id.decode("latin1"), exchange.tenant, arrived_t, outcome, code,
                parsed.route, parsed.stream, parsed.whole, exchange.prompt_tokens, tokens, exchange.prefill_engine,
                exchange.decode_engine, exchange.attempts, prefilled_s, ttft_s, tpot_s, last_t - arrived_t, met,
                continued, gap_s, exchange.begun_t - arrived_t if exchange.begun_t else None,
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

    # Carrying out

    def _wait(self, command: c.Wait) -> None:
        exchange = self.exchanges.get(command.request)
        if exchange is not None:
            if command.what != "seat":
                exchange.drop()
                exchange.handoff = None
            self.deadlines.arm(exchange.watch, command.what, command.until)

    def _start_prefill(self, command: c.StartPrefill) -> None:
        exchange = self.exchanges.get(command.request)
        if exchange is not None:
            self.deadlines.arm(exchange.watch, "prefill", command.until)
            exchange.start("prefill", command.engine)

    def _start_decode(self, command: c.StartDecode) -> None:
        self._start_answer(command, "decode")

    def _start_whole(self, command: c.StartWhole) -> None:
        self._start_answer(command, "whole")

    def _start_answer(self, command: c.StartDecode | c.StartWhole, leg: e.Leg) -> None:
        exchange = self.exchanges.get(command.request)
        if exchange is not None:
            # nothing of a buffered answer comes before its end: no time to a first token is promised
            until = command.until if exchange.parsed.stream else math.inf
            self.deadlines.arm(exchange.watch, "first_token", until)
            exchange.start(leg, command.engine)

    def _resume(self, command: c.Resume) -> None:
        exchange = self.exchanges.get(command.request)
        if exchange is not None:
            if self.streams.pop(command.request, None) is not None:
                self._stalled.pop(command.request, None)
            self.deadlines.arm(exchange.watch, "resume", command.until)
            resume(self, exchange, command.engine)

    def _refuse(self, command: c.Refuse) -> None:
        exchange = self.exchanges.get(command.request)
        if exchange is not None and exchange.visible:  # its stream was to go on: there is no other way to say it
            self._abort(c.Abort(command.request, command.status, command.code, command.message))
        elif exchange is not None:
            exchange.status = command.status
            self.end(exchange, "refused", command.code, None)
            exchange.refuse(command.status, command.code, command.message, command.retry_after_s)

    def _abort(self, command: c.Abort) -> None:
        exchange = self.exchanges.get(command.request)
        if exchange is not None:
            exchange.status = command.status
            self.end(exchange, "cut" if exchange.visible else "failed", command.code, None)
            exchange.abort(command.status, command.code, command.message)

    # Sweeps

    def _sweep_deadlines(self) -> None:
        now = self.now()
        for number, what in self.deadlines.due(now):
            self.feed(e.DeadlinePassed(now, number, what))

    def _sweep_streams(self) -> None:
        """Report tokens in one batch, and find streams that stall."""
        now, gap_s = self.now(), self.settings.serving.deadlines.gap_s
        most_bytes = self.settings.serving.continuation.max_bytes
        numbers, tokens, stalled = [], [], []
        for number, exchange in self.streams.items():
            frames = exchange.seen_frames()
            new = frames - exchange.frames_reported
            if new:
                exchange.frames_reported = frames
                if exchange.delivered is not None and exchange.delivered.size > most_bytes:
                    exchange.keep_no_more()
                numbers.append(number)
                tokens.append(new)
                if (stall := self._stalled.pop(number, None)) is not None:
                    self.metrics.stall.observe(now - stall[1])
            elif exchange.connection is None or exchange.connection.slow:
                self._stalled.pop(number, None)  # nothing is read while the client does not
            elif gap_s > 0:
                since = self._stalled.setdefault(number, (frames, now))[1]
                if now - since > gap_s:
                    stalled.append(number)
        if numbers:
            self.feed(e.TokensObserved(now, tuple(numbers), tuple(tokens)))
        for number in stalled:
            self.feed(e.DeadlinePassed(now, number, "gap"))
