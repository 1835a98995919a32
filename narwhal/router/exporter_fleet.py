"""What Prometheus reads of roles, engines and the links between them."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily

from narwhal.control.state import Engine
from narwhal.control.strikes import strikes
from narwhal.router.metrics import Sum

if TYPE_CHECKING:
    from narwhal.router.shell import Shell

_ADJACENT = {0: "current", 1: "prefill+1", -1: "prefill-1"}


def roles(shell: "Shell") -> Iterable[Metric]:
    """The split, what the controller makes of it, and what it did."""
    pool, metrics, controller = shell.control.pool, shell.metrics, shell.settings.controller
    split = GaugeMetricFamily("narwhal_split_engines", "Live engines that hold a role.", labels=["role"])
    floor = GaugeMetricFamily("narwhal_split_floor_engines", "Least engines that a role is to have.", labels=["role"])
    for role, number, least in zip(
        ("prefill", "decode"), pool.split(), (controller.min_prefill, controller.min_decode), strict=True
    ):
        split.add_metric([role], number)
        floor.add_metric([role], least)
    yield from (split, floor)
    load = GaugeMetricFamily("narwhal_load_ratio", "Load of a role over its target; 1 is at target.", labels=["role"])
    for role, value in shell.load().items():
        if value is not None:
            load.add_metric([role], value)
    yield load
    yield from _evaluation(shell)
    moves = CounterMetricFamily("narwhal_role_moves", "Engines that were given a role.", labels=["role", "trigger"])
    for (role, trigger), number in sorted(metrics.moves.items()):
        moves.add_metric([role, trigger], number)
    decisions = CounterMetricFamily(
        "narwhal_decisions", "Recorded evaluations of the role controller.", labels=["outcome"]
    )
    for outcome, number in sorted(metrics.decisions.items()):
        decisions.add_metric([outcome], number)
    shut = CounterMetricFamily("narwhal_gate_held", "Decisions that a gate held.", labels=["gate"])
    for gate, number in sorted(metrics.shut.items()):
        shut.add_metric([gate], number)
    yield from (moves, decisions, shut)
    yield GaugeMetricFamily("narwhal_role_epoch", "Rises with each role change.", value=pool.epoch)
    yield GaugeMetricFamily("narwhal_hold", "1 while the operator holds role moves.", value=float(pool.hold))


def _evaluation(shell: "Shell") -> Iterable[Metric]:
    """The last evaluation: scores of the splits that one move leads to, and the gates that were asked."""
    score = GaugeMetricFamily("narwhal_split_score", "Score of a split; lower is better.", labels=["split"])
    gate = GaugeMetricFamily("narwhal_gate_open", "1 where the last evaluation passed a gate.", labels=["gate"])
    last = shell.control.roles.last
    if last is not None:
        for candidate in last.candidates:
            name = _ADJACENT.get(candidate.prefill - last.candidates[0].prefill)
            if name is not None:
                score.add_metric([name], candidate.score)
        passed: dict[str, bool] = {}
        for guard in last.guards:
            passed[guard.name] = passed.get(guard.name, True) and guard.passed
        for name, open_ in sorted(passed.items()):
            gate.add_metric([name], float(open_))
    yield from (score, gate)


_ENGINE = {
    "role_prefill": "1 for prefill, 0 for decode.",
    "live": "1 while the engine may have work.",
    "ejected": "1 while it is out.",
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


def engines(shell: "Shell") -> Iterable[Metric]:
    """Each engine: what the router knows of it, and what it said of itself at the last look."""
    families = {
        name: GaugeMetricFamily(f"narwhal_engine_{name}", text, labels=["engine"]) for name, text in _ENGINE.items()
    }
    info = GaugeMetricFamily(
        "narwhal_engine_info", "1 for the present life of an engine.", labels=["engine", "generation", "cohort"]
    )
    pool, half_life_s = shell.control.pool, shell.settings.recovery.strike_half_life_s
    now, tpot_s = shell.now(), shell.settings.slo.tpot_s
    for name, engine in sorted(pool.engines.items()):
        info.add_metric([name, engine.generation, engine.fingerprint], 1.0)
        values = (
            float(engine.role == "prefill"), float(engine.live), float(engine.ejected), float(engine.draining),
            float(engine.draining and engine.drain.done), float(name in pool.lone), engine.charged_streams,
            len(engine.prefills), engine.charged_kv_tokens, engine.backlog_s(now), engine.occupancy(tpot_s),
            float(engine.suspected or engine.questions > 0), float(engine.probation), strikes(engine, now, half_life_s),
            engine.vitals.drift, len(engine.vitals.starts_t), engine.vitals.alarms,
        )  # fmt: skip
        for family, value in zip(families.values(), values, strict=True):
            family.add_metric([name], value)
    yield from families.values()
    yield info
    yield from _said(shell, pool.engines)
    cohorts = {engine.fingerprint for engine in pool.engines.values() if engine.live}
    yield GaugeMetricFamily("narwhal_cohorts", "Contracts that live engines run with.", value=len(cohorts))
    changes = CounterMetricFamily("narwhal_engine_changes", "Changes of engines' standing.", labels=["change"])
    for change, number in sorted(shell.metrics.changes.items()):
        changes.add_metric([change], number)
    yield changes


def _said(shell: "Shell", known: dict[str, Engine]) -> Iterable[Metric]:
    """Batch and KV as engines tell them, and their times as requests saw them."""
    batch = GaugeMetricFamily("narwhal_engine_batch_requests", "Requests in its batch.", labels=["engine"])
    waiting = GaugeMetricFamily("narwhal_engine_waiting_requests", "Requests that wait in it.", labels=["engine"])
    kv = GaugeMetricFamily("narwhal_engine_kv_usage_ratio", "KV in use over what there is.", labels=["engine"])
    for name, seen in sorted(shell.seen.items()):
        engine = known.get(name)
        if engine is not None:
            batch.add_metric([name], seen.running)
            waiting.add_metric([name], seen.waiting)
            kv.add_metric([name], seen.kv_used_tokens / engine.curves.kv_capacity_tokens)
    yield from (batch, waiting, kv)
    prefill, tpot = "Sending of leg 1 to its answer.", "Mean gap between tokens of the streams that it decoded."
    yield _summary("narwhal_engine_prefill_seconds", prefill, shell.metrics.prefills)
    yield _summary("narwhal_engine_tpot_seconds", tpot, shell.metrics.paces)


def _summary(name: str, text: str, sums: dict[str, Sum]) -> Metric:
    family = SummaryMetricFamily(name, text, labels=["engine"])
    for engine, sum_ in sorted(sums.items()):
        family.add_metric([engine], sum_.count, sum_.total)
    return family


def links(shell: "Shell") -> Iterable[Metric]:
    """Pairs that were used or tried."""
    pool, pair = shell.control.pool, ["producer", "consumer"]
    handoffs = CounterMetricFamily("narwhal_link_handoffs", "Handoffs over a pair.", labels=pair)
    moved = CounterMetricFamily("narwhal_link_bytes", "KV that was handed over.", labels=pair)
    times = SummaryMetricFamily("narwhal_link_handoff_seconds", "Leg 2 to its first token.", labels=pair)
    failures = CounterMetricFamily("narwhal_link_failures", "Handoffs, probes and canaries that failed.", labels=pair)
    out = GaugeMetricFamily("narwhal_link_out", "1 while a pair carries no handoffs.", labels=pair)
    info = GaugeMetricFamily("narwhal_link_info", "1; how KV moves over a pair.", labels=[*pair, "transport"])
    changes = CounterMetricFamily("narwhal_link_transport_changes", "Times that its transport changed.", labels=pair)
    for consumer in pool.engines.values():
        for name, link in consumer.links.items():
            names, producer = [name, consumer.id], pool.engines.get(name)
            per_token = producer.curves.kv_bytes_per_token if producer is not None else 0
            handoffs.add_metric(names, link.handoffs)
            moved.add_metric(names, link.tokens * per_token + link.bytes)
            times.add_metric(names, link.timed, link.seconds)
            failures.add_metric(names, link.failures)
            out.add_metric(names, float(link.out))
            changes.add_metric(names, shell.metrics.transport_changes.get((name, consumer.id), 0))
            transport = shell.metrics.transports.get((name, consumer.id))
            if transport is not None:
                info.add_metric([*names, transport], 1.0)
    yield from (handoffs, moved, times, failures, out, info, changes)
    yield from _tries(shell)


def _tries(shell: "Shell") -> Iterable[Metric]:
    pool = shell.control.pool
    tries = CounterMetricFamily("narwhal_tries", "Handoffs that were tried.", labels=["purpose", "outcome"])
    for (purpose, outcome), number in sorted(shell.metrics.tries.items()):
        tries.add_metric([purpose, outcome], number)
    yield tries
    armed = float(shell.control.health.canaries.prompt_tokens > 0)
    yield GaugeMetricFamily("narwhal_canary_armed", "1 while KV is compared in the background.", value=armed)
    reduced = GaugeMetricFamily("narwhal_degraded", "1 while a role has no open engine.", labels=["role"])
    for role, own, others in (("prefill", pool.prefill, pool.decode), ("decode", pool.decode, pool.prefill)):
        reduced.add_metric([role], float(not own and bool(others) and len(pool.engines) > 1))
    yield reduced
