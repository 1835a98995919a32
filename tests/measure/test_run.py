"""A benchmark of a server that is no narwhal router: measured, kept, passed over, and what of it is not checked."""

import asyncio
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import uvloop

from narwhal.fleet.model import Point, Points, RateTraffic, Slo, Validity
from narwhal.measure import BenchError, Plan, Ran, Target, read_evidence, run_points, search_points, table
from tests.measure.servers import DONE, END, Handler, chunk, event, head, send, serving, token

LIMITS = Validity(lag_p99_s=30.0, stolen_share=1.0, waited_share=1.0, stall_s=30.0)


async def answer(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    prompt = body.get("prompt") or body["messages"][0]["content"].split()
    usage = {"prompt_tokens": len(prompt), "completion_tokens": body["max_tokens"]}
    texts = b"".join(token("a") for _ in range(body["max_tokens"]))
    await send(writer, head(), chunk(texts + event({"choices": [], "usage": usage}) + DONE), END)


def rate(name: str, **options: Any) -> Point:
    traffic = RateTraffic(kind="rate", arrivals="constant", rate_rps=50, prompt_tokens=7, output_tokens=3)
    settings = {"traffic": traffic, "warmup_s": 0.1, "duration_s": 0.3, "drain_s": 20.0} | options
    return Point(name=name, **settings)


def play(
    out: Path, points: list[Point], handler: Handler = answer, *, search: bool = False, **options: Any
) -> tuple[Ran, list[str]]:
    ran, said = Ran(), []

    async def run() -> None:
        async with serving(handler) as port:
            declared = Points(points=points, slo=Slo(ttft_s=30.0, tpot_s=30.0), validity=LIMITS)
            plan = Plan("b", declared, Path(), Target("127.0.0.1", port, "m"), out, admin=None, **options)
            await (search_points if search else run_points)(plan, ran, said.append)

    uvloop.run(asyncio.wait_for(run(), 120))
    return ran, said


def test_what_a_killed_run_left_half_written_is_told_and_removed(tmp_path: Path) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    left = tmp_path / "one" / f".20261130T100000.000Z.{dead.pid}.partial"
    mine = tmp_path / "one" / f".20261130T100000.000Z.{os.getpid()}.partial"
    for folder in (left, mine):
        folder.mkdir(parents=True)
        (folder / "requests.jsonl").write_text("{}")
    ran, said = play(tmp_path, [rate("one")])
    assert not left.exists()
    assert mine.exists()
    assert [left.name in line for line in said if "killed" in line] == [True]
    assert ran.measured[0].evidence.verdict.valid


def test_points_are_measured_kept_and_passed_over(tmp_path: Path) -> None:
    points = [rate("one", attainment=0.5), rate("two")]
    ran, said = play(tmp_path, points)
    assert [one.evidence.point.name for one in ran.measured] == ["one", "two"]
    evidence = read_evidence(ran.measured[0].folder)
    assert evidence == ran.measured[0].evidence
    assert evidence.verdict.valid
    assert evidence.verdict.passed is True
    assert {
        check.name: check.outcome for check in evidence.verdict.checks if check.name not in ("schedule", "stolen")
    } == (dict.fromkeys(("idle", "router", "engines", "reconciled", "alone"), "skipped"))
    rows = [json.loads(line) for line in (ran.measured[0].folder / "requests.jsonl").read_text().splitlines()]
    assert {(row["prompt_tokens"], row["prompt_tokens_told"], row["tokens"]) for row in rows} == {(7, 7, 3)}
    assert sum(row["warmup"] for row in rows) == len(rows) - evidence.figures.offered > 0
    assert any("as declared" in line for line in said)
    assert len(table(ran.measured)) == 3
    again, said = play(tmp_path, points)
    assert [one.kept for one in again.measured] == [True, True]
    assert [one.folder for one in again.measured] == [one.folder for one in ran.measured]
    other, _ = play(tmp_path, [points[0].model_copy(update={"seed": 2}), points[1]])
    assert [one.kept for one in other.measured] == [False, True]
    forced, _ = play(tmp_path, points, again=True)
    assert [one.kept for one in forced.measured] == [False, False]


def test_what_is_not_answered_is_given_up_after_the_drain_and_missed(tmp_path: Path) -> None:
    async def silent(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        await send(writer, head(), chunk(token("a")))
        await asyncio.sleep(600)

    ran, _ = play(tmp_path, [rate("one", attainment=0.1, drain_s=0.3)], silent)
    figures = ran.measured[0].evidence.figures
    assert figures.cancelled == figures.offered > 0
    assert (figures.attainment, ran.measured[0].evidence.verdict.passed) == (0.0, False)


def test_a_search_leaves_a_document_and_evidence_of_each_rate(tmp_path: Path) -> None:
    ran, _ = play(tmp_path, [rate("one")], search=True)
    ((path, search),) = ran.searches
    assert (search.goodput_rps, search.above_rps) == (200.0, None)
    assert [one.rate_rps for one in search.tries] == [12.5, 200.0]
    assert all(read_evidence(path.parent / one.evidence) is not None for one in search.tries)


def test_a_point_without_targets_is_refused(tmp_path: Path) -> None:
    async def run() -> None:
        plan = Plan("b", Points(points=[rate("one")]), Path(), Target("127.0.0.1", 9, "m"), tmp_path, admin=None)
        await run_points(plan, Ran(), lambda line: None)

    with pytest.raises(BenchError, match="no targets"):
        uvloop.run(run())
