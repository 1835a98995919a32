"""What Prometheus reads, made of counters and state when it is asked for.

The catalogue is `docs/reference/metrics.md`; a test compares the two.
"""

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

import narwhal
from narwhal.router.exporter_fleet import engines, links, roles

if TYPE_CHECKING:
    from narwhal.router.shell import Shell

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class Collector:
    """Turns the counters and the state of a router into metrics."""

    def __init__(self, shell: "Shell") -> None:
        self._shell = shell

    def collect(self) -> Iterable[Metric]:
        """All metrics; see the catalogue."""
        for part in (_requests, _times, _tenants, roles, engines, links, _router, _workers):
            yield from part(self._shell)


def _requests(shell: "Shell") -> Iterable[Metric]:
    metrics = shell.metrics
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
    for name, text, value in (
        ("requests_judged", "Requests that are over and count for attainment.", metrics.judged.all),
        ("requests_met", "Those of them that were within both targets.", metrics.judged.met),
        ("retries", "Further engines that requests were sent to.", metrics.retries),
        ("continuations", "Streams that went on on another engine, each time counted.", metrics.continuations),
        ("tokens_generated", "Tokens that clients were sent.", metrics.tokens),
    ):
        yield CounterMetricFamily(f"narwhal_{name}", text, value=value)


def _times(shell: "Shell") -> Iterable[Metric]:
    metrics, slo = shell.metrics, shell.settings.slo
    for name, text, histogram in (
        ("ttft", "Arrival at the router to the first token leaving it.", metrics.ttft),
        ("tpot", "Mean gap between a stream's tokens after the first.", metrics.tpot),
        ("queue_wait", "Arrival at the router to the sending of the first leg.", metrics.queued),
        ("stream_stall", "Times in which a stream gave nothing.", metrics.stall),
        ("continuation_gap", "Loss of an engine to the next token of its stream.", metrics.gap),
        ("loop_lag", "How late the event loop's timers come.", metrics.lag),
    ):
        buckets = histogram.buckets()
        yield HistogramMetricFamily(f"narwhal_{name}_seconds", text, buckets=buckets, sum_value=histogram.total)
    for name, text, value in (
        ("ttft_seconds", "Target of the time to the first token.", slo.ttft_s),
        ("tpot_seconds", "Target of the mean gap between tokens.", slo.tpot_s),
        ("attainment_ratio", "Share of requests that should be within both.", slo.attainment),
    ):
        yield GaugeMetricFamily(f"narwhal_slo_{name}", text, value=value)


def _tenants(shell: "Shell") -> Iterable[Metric]:
    """One label for each tenant of the fleet file, whatever clients send."""
    metrics, accounts = shell.metrics, shell.control.pool.accounts
    denied = CounterMetricFamily("narwhal_denied", "Requests without a key that lets them in.", labels=["code"])
    for code, number in sorted(metrics.denied.items()):
        denied.add_metric([code], number)
    yield denied
    counters = {
        "requests_offered": "A tenant's requests that passed the door.",
        "requests_judged": "A tenant's requests that count for attainment.",
        "requests_met": "Those of them that were within both targets.",
        "tokens": "Tokens that a tenant was served.",
    }
    counted = {
        name: CounterMetricFamily(f"narwhal_tenant_{name}", text, labels=["tenant"]) for name, text in counters.items()
    }
    open_ = GaugeMetricFamily("narwhal_tenant_requests_open", "A tenant's requests in the router.", labels=["tenant"])
    queued = GaugeMetricFamily("narwhal_tenant_queue_requests", "Those that wait for an engine.", labels=["tenant"])
    for name in accounts.configured:
        account, judged = accounts[name], metrics.tenants_judged.get(name)
        all_, met = (judged.all, judged.met) if judged is not None else (0, 0)
        values = metrics.tenants_offered.get(name, 0), all_, met, account.tokens
        for family, value in zip(counted.values(), values, strict=True):
            family.add_metric([name], value)
        open_.add_metric([name], account.open)
        queued.add_metric([name], account.waiting)
    ended = CounterMetricFamily(
        "narwhal_tenant_requests_ended", "A tenant's requests that are over.", labels=["tenant", "outcome", "code"]
    )
    for (name, outcome, code), number in sorted(metrics.tenants.items()):
        if name in accounts.configured:
            ended.add_metric([name, outcome, code], number)
    yield from (*counted.values(), open_, queued, ended)


def _router(shell: "Shell") -> Iterable[Metric]:
    pool, serving = shell.control.pool, shell.settings.serving
    left = GaugeMetricFamily("narwhal_tries_left", "Second tries that may be made now.", labels=["kind"])
    left.add_metric(["retry"], pool.retries.left(serving.retry_budget))
    left.add_metric(["continuation"], pool.continuations.left(serving.continuation.budget))
    yield left
    slack = "Seconds that admission adds to the price of what has to wait, learned from late first tokens."
    for name, text, value in (
        ("queue_requests", "Prompts that wait in the router.", len(pool.queue) + len(pool.held)),
        ("queue_limit_requests", "Prompts that may wait in the router.", serving.queue.max_requests),
        ("streams_open", "Streams that are being relayed.", shell.open_streams),
        ("requests_open", "Requests in the router.", shell.open_requests),
        ("client_connections", "Connections of clients that are open.", shell.connections),
        ("workers", "Processes that own client connections.", len(shell.worker_pids)),
        ("handoff_seconds", "Moving mean of leg 2 to its first token.", pool.handoff_s),
        ("admission_slack_seconds", slack, pool.slack_s),
        ("journal_degraded", "1 while the journal cannot be written.", bool(shell.journal.error)),
    ):
        yield GaugeMetricFamily(f"narwhal_{name}", text, value=float(value))
    yield CounterMetricFamily(
        "narwhal_journal_dropped_lines", "Lines the journal could not write.", value=shell.journal.dropped
    )
    reloads = CounterMetricFamily("narwhal_reloads", "Reloads of the fleet file, by outcome.", labels=["outcome"])
    for outcome, number in shell.metrics.reloads.items():
        reloads.add_metric([outcome], number)
    yield reloads
    yield InfoMetricFamily("narwhal_build", "Version of the router.", value={"version": narwhal.__version__})


def _workers(shell: "Shell") -> Iterable[Metric]:
    """The processes that own client connections: `process_*` is of the one that decides."""
    metrics = shell.metrics
    lost, hung = "Such processes that ended by themselves.", "Such processes that were killed, since they hung."
    yield CounterMetricFamily("narwhal_workers_lost", lost, value=metrics.workers_lost)
    yield CounterMetricFamily("narwhal_workers_hung", hung, value=metrics.workers_hung)
    memory = GaugeMetricFamily("narwhal_worker_memory_bytes", "Resident memory of a worker.", labels=["worker"])
    cpu = CounterMetricFamily("narwhal_worker_cpu_seconds", "Processor time of a worker.", labels=["worker"])
    for slot, pid in sorted(shell.worker_pids.items()):
        fields = _stat(pid)
        if fields:
            memory.add_metric([str(slot)], int(fields[21]) * _PAGE_BYTES)
            cpu.add_metric([str(slot)], (int(fields[11]) + int(fields[12])) * _TICK_S)
    yield from (memory, cpu)


def _stat(pid: int) -> Sequence[str]:
    """The fields of `/proc/PID/stat` from the state on (proc(5)); empty where it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return ()
