"""Evidence made by hand, as `narwhal bench` leaves it."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from narwhal.fleet.model import MixTraffic, Point, RateTraffic, Slo
from narwhal.measure import Outcome, Planned
from narwhal.measure.evidence import (
    DOCUMENT,
    JOURNAL,
    REQUESTS,
    SAMPLES,
    BenchCheck,
    BenchEvidence,
    BenchInputs,
    BenchSample,
    BenchVerdict,
    EngineSample,
    FleetSeen,
)
from narwhal.measure.figures import client_facts, figures
from narwhal.measure.keeping import digest_of, new_folder, write_document, write_rows
from narwhal.measure.machine import machine_facts
from narwhal.measure.point import _row

SLO = Slo(ttft_s=2.0, tpot_s=0.06)
AT = "2026-11-30T10:00:00.000Z"
SECONDS = 60.0
START_T = 1000.0
"""The router's clock when the load began."""
TOKENS = 20


def outcomes(count: int, *, seed: int = 1, slower: float = 1.0, lost: float = 0.0) -> list[Outcome]:
    """Requests of a minute; with one seed the same ones, `slower` times as slow, a share `lost`."""
    rng = random.Random(seed)
    made = []
    for number in range(count):
        sent_s, ttft_s, tpot_s = SECONDS * number / count, rng.uniform(0.2, 2.2), rng.uniform(0.02, 0.05)
        outcome = Outcome(Planned(sent_s, 100, TOKENS, "code"), sent_s, id=f"bench-{number}", prompt_tokens=100)
        if rng.random() < lost:
            outcome.result, outcome.status, outcome.ended_s = "refused", 429, sent_s + 0.01
        else:
            outcome.result, outcome.status, outcome.tokens = "served", 200, TOKENS
            outcome.first_token_s = sent_s + slower * ttft_s
            outcome.last_token_s = outcome.ended_s = outcome.first_token_s + slower * tpot_s * (TOKENS - 1)
            outcome.gap_s = 2 * slower * tpot_s
        made.append(outcome)
    return made


def point_named(name: str, rate_rps: float = 4.0, **more: Any) -> Point:
    traffic = RateTraffic(kind="rate", rate_rps=rate_rps, prompt_tokens=100, output_tokens=TOKENS)
    return Point(name=name, traffic=traffic, warmup_s=0, duration_s=SECONDS, **more)


def mixed_point(name: str, mix: str, rate_rps: float) -> Point:
    return Point(name=name, traffic=MixTraffic(kind="mix", mix=mix, rate_rps=rate_rps), warmup_s=0, duration_s=SECONDS)


def fleet_seen(*, policy: str = "reactive", held: bool = False, moves: int = 1) -> FleetSeen:
    return FleetSeen(
        name="f",
        model="m",
        policy=policy,
        held=held,
        prefill=2,
        decode=2,
        prefill_after=3,
        decode_after=1,
        moves=moves,
        engines=[],
    )


def journal_rows(made: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Rows of the requests, and of one move with its decision at the tenth second."""
    rows: list[dict[str, Any]] = [
        {
            "type": "request",
            "id": one.id,
            "arrived_t": START_T + one.sent_s + 0.001,
            "outcome": one.result,
            "prefilled_s": 0.6 * one.ttft_s if one.ttft_s else None,
            "ttft_s": one.ttft_s,
            "tpot_s": one.tpot_s,
            "total_s": (one.ended_s or one.sent_s) - one.sent_s,
            "prefill_engine": "h/0" if one.ttft_s else "",
            "decode_engine": "h/2" if one.ttft_s else "",
            "retries": 0,
            "continued": 0,
            "whole": False,
        }
        for one in made
    ]
    move = {"engine": "h/2", "source": "decode", "target": "prefill"}
    decision = {"id": 7, "t": START_T + 10, "outcome": "moved", "reason": "prefill is late", "moves": [move]}
    rows.append({"type": "decision", "decision": decision})
    change = {"type": "engine", "engine": "h/2", "epoch": 1}
    rows.append({**change, "t": START_T + 10.001, "change": "moved", "reason": "to prefill", "decision": 7})
    return rows


def samples() -> list[BenchSample]:
    return [
        BenchSample(
            t_s=float(second),
            running=second % 7,
            prefill=2 if second < 10 else 3,
            decode=2 if second < 10 else 1,
            load_prefill=0.02 * second,
            load_decode=0.5,
            waiting=second % 3,
            engines=[
                EngineSample(
                    id="h/2", role="decode", state="live", residents=1, prefills=0, kv_tokens=5.0, occupancy=0.1
                )
            ],
        )
        for second in range(int(SECONDS))
    ]


def write_point(
    parent: Path,
    made: Sequence[Outcome],
    *,
    name: str = "chat-4",
    at: str = AT,
    wrong: str = "",
    watched: bool = True,
    point: Point | None = None,
    slo: Slo = SLO,
    fleet: FleetSeen | None = None,
) -> Path:
    """Evidence of a point in its folder; `wrong`: a check failed, and this is what it said."""
    point = point or point_named(name)
    came_to = figures(made, slo, SECONDS)
    checks = [BenchCheck(name="schedule", outcome="failed" if wrong else "passed", message=wrong)]
    passed = None if point.attainment is None or wrong else (came_to.attainment or 0.0) >= point.attainment
    with new_folder(parent / point.name, at) as (partial, final):
        files = {REQUESTS: write_rows(partial / REQUESTS, (_row(one, slo, 0.0).model_dump() for one in made))}
        if watched:
            files[JOURNAL] = write_rows(partial / JOURNAL, journal_rows(made))
            files[SAMPLES] = write_rows(partial / SAMPLES, (sample.model_dump() for sample in samples()))
        evidence = BenchEvidence(
            kind="BenchEvidence",
            benchmark="b",
            point=point,
            slo=slo,
            started_at=at,
            ended_at=at,
            router_start_t=START_T if watched else None,
            inputs=BenchInputs(point=digest_of("p"), trace=None, fleet=None, served=None, profiles={}, narwhal="1"),
            fleet=(fleet or fleet_seen()) if watched else None,
            machine=machine_facts(0.0, 0.0),
            client=client_facts(made, 0, 0.0),
            figures=came_to,
            verdict=BenchVerdict(valid=not wrong, passed=passed, checks=checks),
            files=files,
        )
        write_document(partial / DOCUMENT, evidence)
    return final
