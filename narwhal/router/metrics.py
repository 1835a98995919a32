"""What the router counts: an addition each, on the hot path. `exporter` turns it into what Prometheus reads."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from narwhal.control.records import Decision
from narwhal.fleet.model import Slo
from narwhal.router.rows import RequestRow

LAG_BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0)
GAP_BOUNDS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0)
STALL_BOUNDS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0)
TIMES_TARGET = (0.025, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0)
"""Bounds of what has a target, over that target: finest around it, and one of them is it."""
UNTOLD = "untold"
"""Trigger of a move whose decision is not kept any more."""


def bounds(targets: Iterable[float]) -> tuple[float, ...]:
    """Bounds for a histogram of what has targets, in the targets' unit; the largest one scales, each is a bound."""
    targets = [float(target) for target in targets]
    most = max(targets)
    return tuple(sorted({float(f"{most * times:.4g}") for times in TIMES_TARGET} | set(targets)))


class Sum:
    """How many values there were, and their sum."""

    __slots__ = ("count", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        self.count += 1
        self.total += value


class Histogram:
    """Counts by upper bound, in seconds."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def add(self, counts: Sequence[int], total: float) -> None:
        """Count what another histogram of the same bounds has counted."""
        self.counts = [mine + more for mine, more in zip(self.counts, counts, strict=True)]
        self.total += total

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts, the last at +Inf."""
        out, total = [], 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            total += count
            out.append((bound, float(total)))
        return out


class Judged:
    """Requests that the SLO judges: neither cancelled nor wrong by themselves. And those within both targets."""

    __slots__ = ("all", "met")

    def __init__(self) -> None:
        self.all = 0
        self.met = 0

    def add(self, met: bool) -> None:
        """Judge one."""
        self.all += 1
        self.met += met


class Metrics:
    """The router's counters. `scale` fits the histograms to an SLO, before anything is counted."""

    def __init__(self) -> None:
        self.offered = 0
        self.outcomes: dict[tuple[str, str], int] = {}
        self.judged = Judged()
        self.tokens = 0
        self.ttft = Histogram(())
        self.tpot = Histogram(())
        self.queued = Histogram(())
        """Arrival to the first leg."""
        self.stall = Histogram(STALL_BOUNDS)
        """Times in which a stream gave nothing, seen by the looks at it."""
        self.lag = Histogram(LAG_BOUNDS)
        self.retries = 0
        """Further engines that requests were sent to before their first token."""
        self.continuations = 0
        """Streams that went on on another engine, each time counted."""
        self.gap = Histogram(GAP_BOUNDS)
        """The longest gap of each stream that did."""
        self.prefills: dict[str, Sum] = {}
        """Seconds of first legs, by engine."""
        self.paces: dict[str, Sum] = {}
        """TPOT of streams, by the engine that decoded them."""
        self.moves = {(role, "step"): 0 for role in ("prefill", "decode")}
        """Moves, by role and by what made the controller decide."""
        self.changes: dict[str, int] = {}
        self.decisions: dict[str, int] = {}
        self.shut: dict[str, int] = {}
        """Decisions that a gate held, by its name."""
        self.reloads = {"applied": 0, "failed": 0}
        self.tries: dict[tuple[str, str], int] = {("canary", "wrong"): 0}
        """Handoffs that were tried, by purpose and outcome."""
        self.transports: dict[tuple[str, str], str] = {}
        """How KV moves over a pair, as it was told last: producer, consumer."""
        self.transport_changes: dict[tuple[str, str], int] = {}
        """How often that changed."""
        self.denied: dict[str, int] = {}
        self.workers_lost = 0
        """Workers that ended by themselves."""
        self.workers_hung = 0
        """Workers that were killed, since they hung."""
        self.refused_unread: dict[str, int] = {}
        """Requests that were refused before they were whole, by code."""
        self.tenants: dict[tuple[str, str, str], int] = {}
        """Requests that are over, by tenant, outcome and code, where tenants are declared."""
        self.tenants_offered: dict[str, int] = {}
        self.tenants_judged: dict[str, Judged] = {}

    def scale(self, slo: Slo) -> None:
        """Have the histograms' bounds at the scale of an SLO; one whose bounds change begins anew."""
        ttft = bounds([slo.ttft_s, *(target.ttft_s for target in slo.ttft_by_prompt)])
        if ttft != self.ttft.bounds:
            self.ttft, self.queued = Histogram(ttft), Histogram(ttft)
        tpot = bounds([slo.tpot_s])
        if tpot != self.tpot.bounds:
            self.tpot = Histogram(tpot)

    def arrived(self, tenant: str, *, declared: bool) -> None:
        """A request passed the door; `declared`: its tenant stands in the fleet file."""
        self.offered += 1
        if declared:
            self.tenants_offered[tenant] = self.tenants_offered.get(tenant, 0) + 1

    def ended(self, row: RequestRow, *, declared: bool) -> None:
        """A request is over."""
        key = (row.outcome, row.code)
        self.outcomes[key] = self.outcomes.get(key, 0) + 1
        self.tokens += row.completion_tokens
        if judged(row):
            self.judged.add(row.slo_met)
        if row.ttft_s is not None:
            self.ttft.observe(row.ttft_s)
        if row.tpot_s is not None:
            self.tpot.observe(row.tpot_s)
            _sum(self.paces, row.decode_engine).add(row.tpot_s)
        if row.queued_s is not None:
            self.queued.observe(row.queued_s)
            if row.prefilled_s is not None and not row.retries and not row.continued:
                _sum(self.prefills, row.prefill_engine).add(row.prefilled_s - row.queued_s)
        if row.retries or row.continued:
            self.setbacks(row.retries, row.continued, row.gap_s)
        if declared:
            self._of_tenant(row)

    def _of_tenant(self, row: RequestRow) -> None:
        key = (row.tenant, row.outcome, row.code)
        self.tenants[key] = self.tenants.get(key, 0) + 1
        if judged(row):
            self.tenants_judged.setdefault(row.tenant, Judged()).add(row.slo_met)

    def setbacks(self, retries: int, continued: int, gap_s: float | None) -> None:
        """A request that engines had failed is over."""
        self.retries += retries
        self.continuations += continued
        if gap_s is not None:
            self.gap.observe(gap_s)

    def forget(self, engine: str) -> None:
        """An engine has left: nothing is told of it any more."""
        for kept in (self.prefills, self.paces):
            kept.pop(engine, None)
        for pairs in (self.transports, self.transport_changes):
            for pair in [pair for pair in pairs if engine in pair]:
                del pairs[pair]

    def tried(self, purpose: str, outcome: str) -> None:
        """A handoff was tried."""
        self.tries[purpose, outcome] = self.tries.get((purpose, outcome), 0) + 1

    def carried(self, producer: str, consumer: str, transport: str) -> None:
        """A pair told how KV moves over it; empty: it did not."""
        if not transport:
            return
        pair = (producer, consumer)
        before = self.transports.get(pair, transport)
        self.transports[pair] = transport
        self.transport_changes[pair] = self.transport_changes.get(pair, 0) + (before != transport)

    def decided(self, decision: Decision) -> None:
        """The role controller has decided."""
        outcome = decision.outcome
        self.decisions[outcome] = self.decisions.get(outcome, 0) + 1
        if outcome == "held":
            for gate in {guard.name for guard in decision.guards if not guard.passed}:
                self.shut[gate] = self.shut.get(gate, 0) + 1

    def moved(self, role: str, decision: Decision | None) -> None:
        """An engine was given a role by a decision; None: it is not kept any more."""
        key = (role, decision.trigger if decision is not None else UNTOLD)
        self.moves[key] = self.moves.get(key, 0) + 1

    def count(self, outcome: str) -> int:
        """Requests with an outcome, whatever the code."""
        return sum(number for (name, _), number in self.outcomes.items() if name == outcome)

    def loop_lag(self, seconds: float) -> None:
        """A timer of the loop came late by this."""
        self.lag.observe(seconds)


def judged(row: RequestRow) -> bool:
    """Whether a request counts for attainment: what the client asked for, or did, misses no target."""
    return row.outcome != "cancelled" and row.code != "client"


def _sum(sums: dict[str, Sum], key: str) -> Sum:
    found = sums.get(key)
    if found is None:
        found = sums[key] = Sum()
    return found
