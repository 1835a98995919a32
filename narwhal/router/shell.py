"""The thin shell around `Control`: real time and sockets. Events in, commands carried out, rows written."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection

import narwhal
from narwhal.control import Control, Settings
from narwhal.control import commands as c
from narwhal.control import events as e
from narwhal.control.admission import Refusal
from narwhal.control.placement import degraded, splits
from narwhal.control.records import Decision
from narwhal.control.snapshot import Cut, Snapshot
from narwhal.engine.dialect import EngineMetrics
from narwhal.router.http import Connection
from narwhal.router.journal import Journal, StateLine
from narwhal.router.metrics import Metrics, judged
from narwhal.router.requests import Requests
from narwhal.router.rows import ChangeRow, DecisionRow, PairRow, RequestRow

TICK_S = 0.25
DECISIONS_KEPT = 256
RECENT_S = 60.0
"""Span of the attainment that the router's state tells, in seconds."""
GRAVE = ("ejected", "suspected", "refused", "probation", "alarm")
"""Changes of engines that are logged as warnings."""
log = logging.getLogger("narwhal.router")


class Shell(Requests):
    """Drives one `Control`, for the requests of its own process."""

    def __init__(self, settings: Settings, loop: asyncio.AbstractEventLoop, journal: Journal, metrics: Metrics) -> None:
        self.control = Control(settings)
        super().__init__(self.control.settings, loop, metrics)
        metrics.scale(self.settings.slo)
        self.journal = journal
        journal.snapshot = self._snapshot
        self.decisions: deque[Decision] = deque(maxlen=DECISIONS_KEPT)
        self.recent: deque[tuple[float, bool]] = deque()
        """(end, within both targets) of offered requests in the last minute."""
        self.changes: deque[ChangeRow | PairRow] = deque(maxlen=DECISIONS_KEPT)
        """The latest changes of engines and pairs, for `narwhal why`."""
        self.move: Callable[[c.MoveRole], None] = self._move_at_once
        """Carries a move out, and says what became of it."""
        self.probe: Callable[[str], None] = lambda engine: None
        self.find_out: Callable[[c.TryPair | c.CheckEngine], None] = lambda command: None
        self.left: Callable[[str], None] = lambda engine: None
        """Told of an engine that control let go."""
        self.seen: dict[str, EngineMetrics] = {}
        """What each engine's metrics said at the last look."""
        self.clients: Collection[Connection] = ()
        """Connections of clients, where this process has them."""
        self._events: deque[e.AnyEvent] = deque()
        self._feeding = False
        self._do[c.MoveRole] = lambda k: self.move(k)
        self._do[c.ProbeEngine] = lambda k: self.probe(k.engine)
        self._do[c.TryPair] = self._do[c.CheckEngine] = lambda k: self.find_out(k)
        self._do[c.PairChanged] = self._pair_changed
        self._do[c.EngineChanged] = self._engine_changed
        self._do[c.Decided] = self._decided

    def begin(self) -> None:
        """Start the sweeps and the ticks."""
        super().begin()
        self.every(TICK_S, self._tick)

    def _tick(self) -> None:
        now = self.now()
        while self.recent and self.recent[0][0] < now - RECENT_S:
            self.recent.popleft()
        self.feed(e.Tick(now))

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

    def adopt(self, control: Control) -> None:
        """Drive another control from now on, which knows nothing of the requests that are open here: they end."""
        for exchange in list(self.exchanges.values()):
            self.stopped(exchange)
        self.control, self.settings = control, control.settings
        self.journal.begin_anew()

    def _snapshot(self, t: float) -> StateLine:
        """What control knows now, for the journal: the cut is taken here, its thread makes the rest."""
        cut, settings = Cut(self.control), self.control.settings.copy()
        return lambda pause: Snapshot(t, narwhal.__version__, settings.document(), cut.state(pause))

    def record(self, row: RequestRow) -> None:
        """Count and keep a request that is over."""
        if judged(row):
            self.recent.append((row.arrived_t + row.total_s, row.slo_met))
        self.metrics.ended(row, declared=bool(self.settings.tenants))
        self.journal.row(row)

    # What control knows

    def foresee_tokens(self, tenant: str, least: int, most: int) -> Refusal | None:
        """The refusal that a tenant's request meets whatever it says, if its prompt has `least` to `most` tokens."""
        return self.control.foresee(self.now(), tenant, least, most)

    def unready(self) -> str:
        """Why nothing can be served; empty when it can."""
        pool = self.control.pool
        if splits(pool, self.settings) is not None:
            return ""
        if not pool.prefill and not pool.decode:
            return "no engine is live"
        role = "prefill" if not pool.prefill else "decode"
        return f"no {role} engine is live, and recovery.degraded is refuse"

    @property
    def reduced(self) -> bool:
        """Whether engines of one role serve both, since the other has none."""
        return bool(degraded(self.control.pool, self.settings)) and not self.unready()

    @property
    def workers(self) -> list[dict[str, int]]:
        """Other processes that own requests: pid, connections, requests, streams of each."""
        return []

    @property
    def worker_pids(self) -> dict[int, int]:
        """Their process ids, by number of the worker."""
        return {}

    @property
    def connections(self) -> int:
        """Connections of clients that are open."""
        return len(self.clients)

    def load(self) -> dict[str, float | None]:
        """Projected SLO ratio of each role at the last evaluation (1: at target); None before the first."""
        last = self.control.roles.last
        if last is None or not last.candidates:
            return {"prefill": None, "decode": None}
        now = last.candidates[0]
        idle = not (last.inputs.get("decode_occupancy") or last.inputs.get("decode_entering"))
        return {"prefill": now.ttft, "decode": 0.0 if idle else max(now.tpot, now.queue)}

    # Carrying out

    def _move_at_once(self, command: c.MoveRole) -> None:
        """The label driver: a role is a label, so a move is done when it is said."""
        self.moved(command)
        self.later(e.RoleMoved(self.now(), command.engine, command.role, command.epoch))

    def moved(self, command: c.MoveRole) -> None:
        """Count and keep a move that is done."""
        made = (decision for decision in reversed(self.decisions) if decision.id == command.decision)
        self.metrics.moved(command.role, next(made, None))
        self.journal.row(
            ChangeRow(self.now(), command.engine, "moved", f"to {command.role}", command.epoch, command.decision)
        )
        log.info(
            "%s moves to %s (decision %d, epoch %d)", command.engine, command.role, command.decision, command.epoch
        )

    def _engine_changed(self, command: c.EngineChanged) -> None:
        self.metrics.changes[command.change] = self.metrics.changes.get(command.change, 0) + 1
        row = ChangeRow(self.now(), command.engine, command.change, command.reason)
        self.changes.append(row)
        self.journal.row(row)
        level = logging.WARNING if command.change in GRAVE else logging.INFO
        log.log(level, "%s %s: %s", command.engine, command.change, command.reason)
        if command.change == "left":
            self.metrics.forget(command.engine)
            self.left(command.engine)

    def _pair_changed(self, command: c.PairChanged) -> None:
        row = PairRow(self.now(), command.producer, command.consumer, command.change, command.reason)
        self.changes.append(row)
        self.journal.row(row)
        log.warning("pair %s > %s is %s: %s", row.producer, row.consumer, row.change, row.reason)

    def _decided(self, command: c.Decided) -> None:
        self.decisions.append(command.decision)
        self.metrics.decided(command.decision)
        self.journal.row(DecisionRow(command.decision))
