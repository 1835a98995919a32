"""What Prometheus reads: counters that cost an addition on the hot path, turned into metrics when they are asked for.

The catalogue is `docs/reference/metrics.md`; a test compares the two.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any

import narwhal
from narwhal.control.strikes import strikes

TTFT_BOUNDS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0)
TPOT_BOUNDS = (0.002, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0)
LAG_BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0)


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


class Metrics:
    """The router's counters."""

    def __init__(self) -> None:
        self.offered = 0
        self.outcomes: dict[tuple[str, str], int] = {}
        self.tokens = 0
        self.ttft = Histogram(TTFT_BOUNDS)
        self.tpot = Histogram(TPOT_BOUNDS)
        self.lag = Histogram(LAG_BOUNDS)
        self.retries = 0
        """Further engines that requests were sent to before their first token."""
        self.continuations = 0
        """Streams that went on on another engine, each time counted."""
        self.gap = Histogram(TTFT_BOUNDS)
        """The longest gap of each stream that did."""
        self.moves = {"prefill": 0, "decode": 0}
        self.changes: dict[str, int] = {}
        self.decisions: dict[str, int] = {}
        self.reloads = {"applied": 0, "failed": 0}
        self.tries: dict[tuple[str, str], int] = {("canary", "wrong"): 0}
        """Handoffs that were tried, by purpose and outcome."""
        self.denied: dict[str, int] = {}
        self.workers_lost = 0
        """Workers that ended by themselves."""
        self.workers_hung = 0
        """Workers that were killed, since they hung."""
        self.refused_unread: dict[str, int] = {}
        """Requests that were refused before they were whole, by code."""
        self.tenants: dict[tuple[str, str], int] = {}
        """Requests that are over, by tenant and outcome, where tenants are declared."""

    def ended(self, outcome: str, code: str, ttft_s: float | None, tpot_s: float | None, tokens: int) -> None:
        """A request is over."""
        key = (outcome, code)
        self.outcomes[key] = self.outcomes.get(key, 0) + 1
        self.tokens += tokens
        if ttft_s is not None:
            self.ttft.observe(ttft_s)
        if tpot_s is not None:
            self.tpot.observe(tpot_s)

    def tried(self, purpose: str, outcome: str) -> None:
        """A handoff was tried."""
        self.tries[purpose, outcome] = self.tries.get((purpose, outcome), 0) + 1

    def setbacks(self, retries: int, continued: int, gap_s: float | None) -> None:
        """A request that engines had failed is over."""
        self.retries += retries
        self.continuations += continued
        if gap_s is not None:
            self.gap.observe(gap_s)

    def count(self, outcome: str) -> int:
        """Requests with an outcome, whatever the code."""
        return sum(number for (name, _), number in self.outcomes.items() if name == outcome)

    def loop_lag(self, seconds: float) -> None:
        """A timer of the loop came late by this."""
        self.lag.observe(seconds)


class Collector:
    """Turns counters and state into Prometheus metrics."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell

    def collect(self) -> Iterable[Any]:
        """All metrics; see the catalogue."""
        yield from _requests(self._shell.metrics)
        yield from _tenants(self._shell)
        yield from _roles(self._shell)
        yield from _engines(self._shell)
        yield from _links(self._shell)
        yield from _router(self._shell)


def _requests(metrics: Metrics) -> Iterable[Any]:
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

    yield CounterMetricFamily("narwhal_requests_offered", "Requests that passed the door.", value=metrics.offered)
    ended = CounterMetricFamily(
        "narwhal_requests_ended", "Requests that are over, by outcome.", labels=["outcome", "code"]
    )
    for (outcome, code), number in sorted(metrics.outcomes.items()):
        ended.add_metric([outcome, code], number)
    yield ended
    unread = CounterMetricFamily(
        "narwhal_requests_refused_unread", "Requests refused before they were whole.", labels=["code"]
    )
    for code, number in sorted(metrics.refused_unread.items()):
        unread.add_metric([code], number)
    yield unread
    yield CounterMetricFamily("narwhal_retries", "Further engines that requests were sent to.", value=metrics.retries)
    text = "Streams that went on on another engine, each time counted."
    yield CounterMetricFamily("narwhal_continuations", text, value=metrics.continuations)
    yield CounterMetricFamily("narwhal_tokens_generated", "Tokens that clients were sent.", value=metrics.tokens)
    for name, text, histogram in (
        ("narwhal_ttft_seconds", "Arrival at the router to the first token leaving it.", metrics.ttft),
        ("narwhal_tpot_seconds", "Mean gap between a stream's tokens after the first.", metrics.tpot),
        ("narwhal_continuation_gap_seconds", "Loss of an engine to the next token of its stream.", metrics.gap),
        ("narwhal_loop_lag_seconds", "How late the event loop's timers come.", metrics.lag),
    ):
        yield HistogramMetricFamily(name, text, buckets=histogram.buckets(), sum_value=histogram.total)


def _tenants(shell: Any) -> Iterable[Any]:
    """One label for each tenant of the fleet file, whatever clients send."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    denied = CounterMetricFamily("narwhal_denied", "Requests without a key that lets them in.", labels=["code"])
    for code, number in sorted(shell.metrics.denied.items()):
        denied.add_metric([code], number)
    yield denied
    ended = CounterMetricFamily(
        "narwhal_tenant_requests_ended", "A tenant's requests that are over.", labels=["tenant", "outcome"]
    )
    tokens = CounterMetricFamily("narwhal_tenant_tokens", "Tokens that a tenant was served.", labels=["tenant"])
    open_ = GaugeMetricFamily("narwhal_tenant_requests_open", "A tenant's requests in the router.", labels=["tenant"])
    queued = GaugeMetricFamily("narwhal_tenant_queue_requests", "Those that wait for an engine.", labels=["tenant"])
    accounts = shell.control.pool.accounts
    for name in accounts.configured:
        account = accounts[name]
        tokens.add_metric([name], account.tokens)
        open_.add_metric([name], account.open)
        queued.add_metric([name], account.waiting)
    for (name, outcome), number in sorted(shell.metrics.tenants.items()):
        if name in accounts.configured:
            ended.add_metric([name, outcome], number)
    yield from (ended, tokens, open_, queued)


def _roles(shell: Any) -> Iterable[Any]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    pool, metrics = shell.control.pool, shell.metrics
    split = GaugeMetricFamily("narwhal_split_engines", "Live engines that hold a role.", labels=["role"])
    prefill, decode = pool.split()
    split.add_metric(["prefill"], prefill)
    split.add_metric(["decode"], decode)
    yield split
    load = GaugeMetricFamily("narwhal_load_ratio", "Load of a role over its target; 1 is at target.", labels=["role"])
    for role, value in shell.load().items():
        if value is not None:
            load.add_metric([role], value)
    yield load
    moves = CounterMetricFamily("narwhal_role_moves", "Engines that were given a role.", labels=["role"])
    for role, number in metrics.moves.items():
        moves.add_metric([role], number)
    yield moves
    decisions = CounterMetricFamily(
        "narwhal_decisions", "Recorded evaluations of the role controller.", labels=["outcome"]
    )
    for outcome, number in sorted(metrics.decisions.items()):
        decisions.add_metric([outcome], number)
    yield decisions
    yield GaugeMetricFamily("narwhal_role_epoch", "Rises with each role change.", value=pool.epoch)
    yield GaugeMetricFamily("narwhal_hold", "1 while the operator holds role moves.", value=float(pool.hold))


def _engines(shell: Any) -> Iterable[Any]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    gauges = {
        "role_prefill": "1 for prefill, 0 for decode.",
        "live": "1 while the engine may have work.",
        "draining": "1 while the operator has it drained.",
        "drained": "1 once it can be stopped.",
        "lone": "1 while it serves both legs itself, without anybody to pair it with.",
        "residents": "Decode streams on the engine.",
        "prefills": "Prompts on the engine.",
        "kv_tokens": "KV tokens the engine is charged with.",
        "backlog_seconds": "Predicted seconds until a new prompt would begin.",
        "occupancy_ratio": "How full it is as a decode engine; 1 is full.",
        "suspected": "1 while it gets nothing new until doubts are settled.",
        "probation": "1 while it is slow and placed after all others.",
        "strikes": "Failures that count against it, decayed.",
        "drift_ratio": "Decode interval over the profile's.",
        "restarts": "New generations within the window of recovery.restarts.",
        "wrong_kv_alarms": "Requests that read KV it had freed already.",
    }
    families = {
        name: GaugeMetricFamily(f"narwhal_engine_{name}", text, labels=["engine"]) for name, text in gauges.items()
    }
    lone = shell.control.pool.lone
    now, tpot_s = shell.now(), shell.settings.slo.tpot_s
    half_life_s = shell.settings.recovery.strike_half_life_s
    for name, engine in sorted(shell.control.pool.engines.items()):
        values = (
            float(engine.role == "prefill"), float(engine.live), float(engine.draining),
            float(engine.draining and engine.drain.done), float(name in lone), engine.charged_streams,
            len(engine.prefills), engine.charged_kv_tokens, engine.backlog_s(now), engine.occupancy(tpot_s),
            float(engine.suspected or engine.questions > 0), float(engine.probation), strikes(engine, now, half_life_s),
            engine.vitals.drift, len(engine.vitals.starts_t), engine.vitals.alarms,
        )  # fmt: skip
        for family, value in zip(families.values(), values, strict=True):
            family.add_metric([name], value)
    yield from families.values()
    cohorts = {engine.fingerprint for engine in shell.control.pool.engines.values() if engine.live}
    yield GaugeMetricFamily("narwhal_cohorts", "Contracts that live engines run with.", value=len(cohorts))
    changes = CounterMetricFamily("narwhal_engine_changes", "Changes of engines' standing.", labels=["change"])
    for change, number in sorted(shell.metrics.changes.items()):
        changes.add_metric([change], number)
    yield changes


def _links(shell: Any) -> Iterable[Any]:
    """Pairs that were used or tried."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    pool, pair = shell.control.pool, ["producer", "consumer"]
    handoffs = CounterMetricFamily("narwhal_link_handoffs", "Handoffs over a pair.", labels=pair)
    failures = CounterMetricFamily("narwhal_link_failures", "Handoffs, probes and canaries that failed.", labels=pair)
    out = GaugeMetricFamily("narwhal_link_out", "1 while a pair carries no handoffs.", labels=pair)
    for consumer in pool.engines.values():
        for producer, link in consumer.links.items():
            names = [producer, consumer.id]
            handoffs.add_metric(names, link.handoffs)
            failures.add_metric(names, link.failures)
            out.add_metric(names, float(link.out))
    tries = CounterMetricFamily("narwhal_tries", "Handoffs that were tried.", labels=["purpose", "outcome"])
    for (purpose, outcome), number in sorted(shell.metrics.tries.items()):
        tries.add_metric([purpose, outcome], number)
    yield from (handoffs, failures, out, tries)
    armed = float(shell.control.health.canaries.prompt_tokens > 0)
    yield GaugeMetricFamily("narwhal_canary_armed", "1 while KV is compared in the background.", value=armed)
    reduced = GaugeMetricFamily("narwhal_degraded", "1 while a role has no open engine.", labels=["role"])
    for role, engines, others in (("prefill", pool.prefill, pool.decode), ("decode", pool.decode, pool.prefill)):
        reduced.add_metric([role], float(not engines and bool(others) and len(pool.engines) > 1))
    yield reduced


def _router(shell: Any) -> Iterable[Any]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

    pool = shell.control.pool
    waiting = len(pool.queue) + len(pool.held)
    yield GaugeMetricFamily("narwhal_queue_requests", "Prompts that wait in the router.", value=waiting)
    serving = shell.settings.serving
    left = GaugeMetricFamily("narwhal_tries_left", "Second tries that may be made now.", labels=["kind"])
    left.add_metric(["retry"], pool.retries.left(serving.retry_budget))
    left.add_metric(["continuation"], pool.continuations.left(serving.continuation.budget))
    yield left
    yield GaugeMetricFamily("narwhal_streams_open", "Streams that are being relayed.", value=shell.open_streams)
    yield GaugeMetricFamily("narwhal_requests_open", "Requests in the router.", value=shell.open_requests)
    yield GaugeMetricFamily("narwhal_workers", "Processes that own client connections.", value=len(shell.workers))
    lost = shell.metrics.workers_lost
    yield CounterMetricFamily("narwhal_workers_lost", "Such processes that ended by themselves.", value=lost)
    hung = shell.metrics.workers_hung
    yield CounterMetricFamily("narwhal_workers_hung", "Such processes that were killed, since they hung.", value=hung)
    yield GaugeMetricFamily("narwhal_handoff_seconds", "Moving mean of leg 2 to its first token.", value=pool.handoff_s)
    yield GaugeMetricFamily(
        "narwhal_admission_slack_seconds",
        "Seconds that admission adds to the price of what has to wait, learned from late first tokens.",
        value=pool.slack_s,
    )
    yield CounterMetricFamily(
        "narwhal_journal_dropped_lines", "Lines the journal could not write.", value=shell.journal.dropped
    )
    yield GaugeMetricFamily(
        "narwhal_journal_degraded", "1 while the journal cannot be written.", value=float(bool(shell.journal.error))
    )
    reloads = CounterMetricFamily("narwhal_reloads", "Reloads of the fleet file, by outcome.", labels=["outcome"])
    for outcome, number in shell.metrics.reloads.items():
        reloads.add_metric([outcome], number)
    yield reloads
    yield InfoMetricFamily("narwhal_build", "Version of the router.", value={"version": narwhal.__version__})
