"""Measuring one point: wait until the fleet is idle, send, watch, reconcile, judge, keep."""

import asyncio
import gc
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from narwhal.fleet.model import Point, Slo, Validity
from narwhal.measure import checks
from narwhal.measure.evidence import (
    DOCUMENT,
    JOURNAL,
    METRICS,
    REQUESTS,
    SAMPLES,
    BenchCheck,
    BenchEvidence,
    BenchFile,
    BenchInputs,
    BenchRequest,
    EngineSeen,
    FleetSeen,
)
from narwhal.measure.figures import client_facts, figures
from narwhal.measure.heartbeat import Heartbeat, waited_s
from narwhal.measure.judging import meets
from narwhal.measure.keeping import new_folder, utc_now, write_document, write_rows
from narwhal.measure.load import Load, Target
from narwhal.measure.machine import cpu_ticks, machine_facts, stolen_share
from narwhal.measure.outcome import Outcome
from narwhal.measure.prompts import Prompts
from narwhal.measure.reconcile import alone, reconciled
from narwhal.measure.schedule import Planned
from narwhal.measure.watching import State, Watch

Say = Callable[[str], None]
SAY_EVERY_S = 5.0
GC_THRESHOLD = 50_000
"""Objects between two collections of the youngest generation during a load."""


@dataclass(frozen=True, slots=True)
class Work:
    """A point that is ready to be measured."""

    benchmark: str
    point: Point
    slo: Slo
    validity: Validity
    target: Target
    requests: Sequence[Planned]
    prompts: Prompts
    inputs: BenchInputs
    folder: Path
    """Where folders of its evidence go."""


@dataclass(slots=True)
class _Seen:
    """What there was to see around a load."""

    started_at: str
    stolen: tuple[int, int] | None
    load_1m: float
    before: State | None = None
    after: State | None = None


async def measure(work: Work, watch: Watch | None, say: Say) -> tuple[Path, BenchEvidence]:
    """Measure a point and keep its evidence. Raises `BenchError` when the fleet is not idle and healthy."""
    before = await watch.idle(work.validity.idle_wait_s) if watch is not None else None
    load = Load(
        work.target,
        work.requests,
        prompts=work.prompts,
        name=f"bench-{uuid.uuid4().hex[:12]}",
        timeout_s=work.point.warmup_s + work.point.duration_s + 2 * work.point.drain_s,
        drain_s=work.point.drain_s,
    )
    if watch is not None:
        await watch.begin()
    seen = _Seen(utc_now(), cpu_ticks(), os.getloadavg()[0], before)
    effort = await _played(load, watch, work, say)
    stolen = stolen_share(seen.stolen, cpu_ticks())
    if watch is not None:
        seen.after = await watch.after()
        await watch.read_rows({outcome.id for outcome in load.outcomes})
    return _keep(work, load, watch, seen, effort, stolen)


@dataclass(frozen=True, slots=True)
class _Effort:
    """What a load took from the machine."""

    cpu_s: float
    waited_share: float | None
    stall_max_s: float


async def _played(load: Load, watch: Watch | None, work: Work, say: Say) -> _Effort:
    """Run the load to its end, and tell what that took."""
    began_t, cpu_s, before_s, beats = time.monotonic(), time.process_time(), waited_s(), Heartbeat()
    beats.start()
    try:
        await _play(load, watch, work, say)
    finally:
        beats.stop()
    after_s, seconds = waited_s(), time.monotonic() - began_t
    return _Effort(
        cpu_s=time.process_time() - cpu_s,
        waited_share=min((after_s - before_s) / seconds, 1.0) if after_s is not None and before_s is not None else None,
        stall_max_s=beats.late_max_s,
    )


async def _play(load: Load, watch: Watch | None, work: Work, say: Say) -> None:
    """Run the load to its end, and watch meanwhile."""
    told_t = time.monotonic()

    def tell() -> None:
        nonlocal told_t
        if time.monotonic() - told_t >= SAY_EVERY_S:
            told_t = time.monotonic()
            say(_progress(load, work))

    async def only_tell() -> None:
        while True:
            tell()
            await asyncio.sleep(1.0)

    watcher = asyncio.ensure_future(watch.during(load, tell) if watch is not None else only_tell())
    try:
        with _calm_collector():
            await load.run()
    finally:
        watcher.cancel()
        await asyncio.wait([watcher])
    if not watcher.cancelled():  # it ends by itself only where it fails
        watcher.result()


@contextmanager
def _calm_collector() -> Iterator[None]:
    """Have the garbage collector look at the load's objects alone, and seldom: a long look makes the load late."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def _progress(load: Load, work: Work) -> str:
    over = [outcome for outcome in load.outcomes if outcome.ended_s is not None]
    met = sum(meets(outcome, work.slo) for outcome in over)
    share = f", {100 * met / len(over):.0f} % of those that ended met their targets" if over else ""
    total, sent = len(work.requests), len(load.outcomes)
    return f"    {load.elapsed_s():5.0f} s: {sent} of {total} sent, {load.in_flight} under way{share}"


def _keep(
    work: Work, load: Load, watch: Watch | None, seen: _Seen, effort: _Effort, stolen: float | None
) -> tuple[Path, BenchEvidence]:
    point, outcomes = work.point, load.outcomes
    scored = [outcome for outcome in outcomes if outcome.planned.t_s >= point.warmup_s]
    came_to = figures(scored, work.slo, point.duration_s)
    client = client_facts(
        outcomes, load.in_flight_max, effort.cpu_s, waited_share=effort.waited_share, stall_max_s=effort.stall_max_s
    )
    found = [checks.schedule_kept(client, work.validity), checks.not_stolen(stolen, client, work.validity)]
    found += _router_checks(load, watch, seen)
    with new_folder(work.folder, seen.started_at) as (partial, final):
        evidence = BenchEvidence(
            kind="BenchEvidence",
            benchmark=work.benchmark,
            point=point,
            slo=work.slo,
            started_at=seen.started_at,
            ended_at=utc_now(),
            router_start_t=watch.router_t(load.started_t) if watch is not None else None,
            inputs=work.inputs,
            fleet=_fleet(seen, watch),
            machine=machine_facts(stolen, seen.load_1m),
            client=client,
            figures=came_to,
            verdict=checks.verdict(point, came_to, found),
            files=_files(partial, work, outcomes, watch),
        )
        write_document(partial / DOCUMENT, evidence)
    return final, evidence


def _router_checks(load: Load, watch: Watch | None, seen: _Seen) -> list[BenchCheck]:
    if watch is None or seen.before is None or seen.after is None:
        return [checks.skipped(name, checks.NOT_ASKED) for name in ("idle", "router", "engines", "reconciled", "alone")]
    return [
        checks.check("idle", "", "the fleet was idle and healthy before"),
        checks.same_router(seen.before, seen.after, load.elapsed_s()),
        checks.same_engines(seen.before, seen.after, watch.rows),
        reconciled(load.outcomes, watch.rows),
        alone(load.outcomes, watch.rows, watch.router_t(load.started_t)),
    ]


def _files(folder: Path, work: Work, outcomes: Sequence[Outcome], watch: Watch | None) -> dict[str, BenchFile]:
    warmup_s = work.point.warmup_s
    files = {REQUESTS: write_rows(folder / REQUESTS, (_row(o, work.slo, warmup_s).model_dump() for o in outcomes))}
    if watch is not None:
        files[JOURNAL] = write_rows(folder / JOURNAL, watch.rows)
        files[SAMPLES] = write_rows(folder / SAMPLES, (sample.model_dump() for sample in watch.samples))
        files[METRICS] = write_rows(folder / METRICS, (scrape.model_dump() for scrape in watch.scrapes))
    return files


def _row(outcome: Outcome, slo: Slo, warmup_s: float) -> BenchRequest:
    return BenchRequest(
        id=outcome.id,
        kind=outcome.planned.kind,
        warmup=outcome.planned.t_s < warmup_s,
        planned_s=outcome.planned.t_s,
        sent_s=outcome.sent_s,
        prompt_tokens=outcome.planned.prompt_tokens,
        prompt_tokens_told=outcome.prompt_tokens,
        max_tokens=outcome.planned.max_tokens,
        tokens=outcome.tokens,
        result=outcome.result,
        status=outcome.status,
        ttft_s=outcome.ttft_s,
        tpot_s=outcome.tpot_s,
        gap_s=outcome.gap_s,
        gap_at_s=outcome.gap_at_s,
        ended_s=outcome.ended_s,
        met=meets(outcome, slo),
        error=outcome.error,
    )


def _fleet(seen: _Seen, watch: Watch | None) -> FleetSeen | None:
    if watch is None or seen.before is None or seen.after is None:
        return None
    before, after = seen.before, seen.after
    now = {engine["id"]: engine for engine in after["engines"]}
    return FleetSeen(
        name=before["fleet"],
        model=before["model"],
        policy=before["policy"],
        held=before["hold"]["on"],
        prefill=before["split"]["prefill"],
        decode=before["split"]["decode"],
        prefill_after=after["split"]["prefill"],
        decode_after=after["split"]["decode"],
        moves=sum(row.get("type") == "engine" and row.get("change") == "moved" for row in watch.rows),
        engines=[
            EngineSeen(
                id=engine["id"],
                role=engine["role"],
                role_after=now[engine["id"]]["role"] if engine["id"] in now else None,
                generation=engine["generation"],
                generation_after=now[engine["id"]]["generation"] if engine["id"] in now else None,
            )
            for engine in before["engines"]
        ],
    )
