"""`narwhal bench` against a router and simulated engines, as processes: counts that agree, faults that void figures."""

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from narwhal.documents import problems
from narwhal.engine.launch import simulated_argv
from narwhal.measure import BenchEvidence, read_evidence
from narwhal.measure.heartbeat import waited_s
from narwhal.report import make_report, read_runs
from tests.e2e.routers import Fleet, fleet_of
from tests.router.harness import eventually, post, read_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]
RATE = {"kind": "rate", "rate_rps": 4, "prompt_tokens": 100, "output_tokens": 12, "spread": 0.3}
MIX = {"kind": "mix", "mix": "turning:code,conv:2", "rate_rps": 3, "prompt_scale": 0.1, "max_output_tokens": 20}
POINTS: list[dict[str, Any]] = [
    {"name": "ids", "traffic": RATE, "warmup_s": 1, "duration_s": 3, "shared_prefix": {"tokens": 32}},
    {"name": "chat", "traffic": RATE, "warmup_s": 1, "duration_s": 3, "endpoint": "chat", "prompts": "text"},
    {"name": "mix", "traffic": MIX, "warmup_s": 0, "duration_s": 4, "prompts": "text", "attainment": 0.01},
]
LIMITS = {"lag_p99_s": 30.0, "stolen_share": 1.0, "waited_share": 1.0, "stall_s": 60.0, "idle_wait_s": 60.0}
LONG = {"name": "long", "traffic": RATE, "warmup_s": 0, "duration_s": 12}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet_of(tmp_path_factory.mktemp("bench"), 4) as running:
        yield running


def argv(fleet: Fleet, folder: Path, points: list[dict[str, Any]], *more: str) -> list[str]:
    """The command that measures points of a file; limits are those of a machine that does other things too."""
    file = folder / "bench.yaml"
    document = {
        "apiVersion": "narwhal/v1",
        "kind": "Benchmark",
        "metadata": {"name": "test"},
        "slo": {"ttft_s": 60.0, "tpot_s": 10.0},
        "validity": LIMITS,
        "points": points,
    }
    file.write_text(json.dumps(document))
    urls = [f"http://127.0.0.1:{fleet.router.port}", "--router", f"http://127.0.0.1:{fleet.router.admin_port}"]
    out = ["--points", str(file), "--out", str(folder / "out"), "--format", "json"]
    return [sys.executable, "-m", "narwhal", "bench", *urls, *out, *more]


def bench(fleet: Fleet, folder: Path, points: list[dict[str, Any]], *more: str) -> dict[str, Any]:
    done = subprocess.run(argv(fleet, folder, points, *more), capture_output=True, text=True, timeout=300, check=False)
    result: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == result["exit_code"], done.stderr
    return result


def rows(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def evidence_of(folder: Path) -> BenchEvidence:
    found = read_evidence(folder)
    assert found is not None
    return found


def test_three_points_agree_with_the_journal_and_are_passed_over_then(fleet: Fleet, tmp_path: Path) -> None:
    before = fleet.router.state()["counts"]
    result = bench(fleet, tmp_path, POINTS)
    assert result["status"] == "success", result["errors"]
    sent = 0
    for point, folder in zip(POINTS, map(Path, result["artifacts"]), strict=True):
        evidence = evidence_of(folder)
        assert evidence.point.name == point["name"]
        assert {
            check.name: check.outcome for check in evidence.verdict.checks if check.name != "stolen"
        } == dict.fromkeys(("schedule", "idle", "router", "engines", "reconciled", "alone"), "passed")
        mine = {row["id"]: row for row in rows(folder, "requests.jsonl")}
        told = {row["id"]: row for row in rows(folder, "journal.jsonl") if row.get("id") in mine}
        sent += len(mine)
        assert mine.keys() == told.keys()
        for id_, row in mine.items():
            assert (row["result"], row["tokens"], row["prompt_tokens"]) == (
                told[id_]["outcome"],
                told[id_]["completion_tokens"],
                told[id_]["prompt_tokens"],
            )
            assert row["prompt_tokens_told"] == row["prompt_tokens"]
            assert row["met"]
        assert evidence.figures.offered == sum(not row["warmup"] for row in mine.values())
        for name, schema in (("requests", "request"), ("samples", "sample"), ("metrics", "scrape")):
            lines = rows(folder, f"{name}.jsonl")
            assert lines
            assert [problems(line, f"bench-{schema}") for line in lines] == [[]] * len(lines)
        assert "127.0.0.1" not in (folder / "samples.jsonl").read_text() + (folder / "BenchEvidence.json").read_text()
    folders = [Path(folder) for folder in result["artifacts"]]
    assert any(max(map(abs, apart_s(folder))) <= allowed_s(evidence_of(folder)) for folder in folders)
    served = fleet.router.state()["counts"]["served"] - before["served"]
    assert served >= sent  # /tokenize was served too
    again = bench(fleet, tmp_path, POINTS)
    assert [point["kept"] for point in again["data"]["points"]] == [True, True, True]
    assert again["artifacts"] == result["artifacts"]
    reported(tmp_path / "out")


def reported(out: Path) -> None:
    """A report of these points has their figures, and the life of a request in parts that follow each other."""
    report = make_report(read_runs([out]), requests=["slowest"])
    (run,) = report.runs
    assert {point.point: point.standing for point in run.points} == {point["name"]: "counts" for point in POINTS}
    assert run.unusable == []
    for story in report.requests:
        assert (story.parts[0].name, story.parts[-1].name) == ("queue", "decode")
        assert [part.from_s for part in story.parts[1:]] == [part.to_s for part in story.parts[:-1]]


def apart_s(folder: Path) -> tuple[float, float]:
    """Medians of what the client's TTFT and TPOT have over the journal's, request by request, in seconds."""
    told = {row["id"]: row for row in rows(folder, "journal.jsonl") if row.get("type") == "request"}
    mine = [row for row in rows(folder, "requests.jsonl") if row["result"] == "served"]
    first, gaps = (
        [row[name] - told[row["id"]][name] for row in mine if row[name] is not None] for name in ("ttft_s", "tpot_s")
    )
    assert len(first) == len(gaps) == len(mine) > 0
    return statistics.median(first), statistics.median(gaps)


def allowed_s(evidence: BenchEvidence) -> float:
    """5 ms where the client had its core; else as much more as its own evidence says that it was held up."""
    client = evidence.client
    assert client.waited_share is not None
    assert client.stall_max_s is not None
    return 0.005 + (client.stall_max_s if client.waited_share > 0.05 else 0.0)


def test_a_point_below_what_it_declares_is_a_finding(fleet: Fleet, tmp_path: Path) -> None:
    strict = {**POINTS[0], "duration_s": 2, "slo": {"ttft_s": 0.0001, "tpot_s": 0.0001}, "attainment": 0.9}
    result = bench(fleet, tmp_path, [strict])
    assert (result["status"], result["exit_code"]) == ("findings", 1)
    assert result["data"]["points"][0]["verdict"]["passed"] is False


def test_goodput_is_searched_and_every_rate_leaves_evidence(fleet: Fleet, tmp_path: Path) -> None:
    point = {**POINTS[0], "duration_s": 2, "search": {"low_rps": 3, "high_rps": 6, "precision": 0.5}}
    result = bench(fleet, tmp_path, [point], "--goodput")
    assert result["status"] == "success", result["errors"]
    (search,) = result["data"]["searches"]
    assert problems(search, "bench-search") == []
    assert (search["goodput_rps"], search["above_rps"]) == (6.0, None)
    assert [one["rate_rps"] for one in search["tries"]] == [3.0, 6.0]
    document = Path(result["artifacts"][-1])
    for one in search["tries"]:
        assert evidence_of(document.parent / one["evidence"]).point.traffic.rate_rps == one["rate_rps"]


def test_ctrl_c_leaves_the_points_that_are_whole(fleet: Fleet, tmp_path: Path) -> None:
    points = [{**POINTS[0], "duration_s": 1}, {**LONG, "duration_s": 300}]
    process = subprocess.Popen(argv(fleet, tmp_path, points), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if "long" in line:
            break
    eventually(
        lambda: any(engine["residents"] for engine in fleet.router.state()["engines"]), "requests of the long point"
    )
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=120)
    result = json.loads(out)
    assert (process.returncode, result["status"]) == (130, "interrupted")
    (folder,) = result["artifacts"]
    assert evidence_of(Path(folder)).point.name == "ids"
    assert list((tmp_path / "out" / "long").glob("*")) == []
    eventually(lambda: not any(e["residents"] for e in fleet.router.state()["engines"]), "the end of what it had sent")


def test_a_busy_fleet_is_not_measured(fleet: Fleet, tmp_path: Path) -> None:
    body = {"prompt": "x", "max_tokens": 2000, "ignore_eos": True, "stream": True}
    with fleet.router.connect() as sock:
        sock.sendall(post(body))
        read_until(sock, b"data: ")
        command = argv(fleet, tmp_path, [POINTS[0]])
        file = tmp_path / "bench.yaml"
        file.write_text(file.read_text().replace('"idle_wait_s": 60.0', '"idle_wait_s": 0.5'))
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    result = json.loads(done.stdout)
    assert (done.returncode, result["errors"][0]["code"]) == (4, "not_idle")
    assert "requests are on" in result["errors"][0]["message"]


def void_checks(process: "subprocess.Popen[str]") -> dict[str, dict[str, str]]:
    """The checks of a point that does not count, by name."""
    out, _ = process.communicate(timeout=200)
    result = json.loads(out)
    assert (process.returncode, result["status"]) == (3, "degraded"), result
    return {check["name"]: check for check in result["data"]["points"][0]["verdict"]["checks"]}


def with_limits(folder: Path, **limits: float) -> None:
    """Have the benchmark file of a folder allow less."""
    file = folder / "bench.yaml"
    document = json.loads(file.read_text())
    document["validity"] |= limits
    file.write_text(json.dumps(document))


def load_of(fleet: Fleet, command: list[str]) -> "subprocess.Popen[str]":
    """A benchmark that sends by now."""
    eventually(lambda: not any(e["residents"] for e in fleet.router.state()["engines"]), "an idle fleet")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    eventually(lambda: any(engine["residents"] for engine in fleet.router.state()["engines"]), "load")
    return process


def test_a_load_generator_that_was_stopped_makes_a_point_invalid(fleet: Fleet, tmp_path: Path) -> None:
    """Its schedule was kept by the letter: less than 1 % of the requests were late by what is allowed here."""
    command = argv(fleet, tmp_path, [LONG])
    with_limits(tmp_path, stall_s=3.0)
    process = load_of(fleet, command)
    process.send_signal(signal.SIGSTOP)
    until_t = time.monotonic() + 4.0
    eventually(lambda: time.monotonic() > until_t, "the end of the stop")
    process.send_signal(signal.SIGCONT)
    checks = void_checks(process)
    assert (checks["schedule"]["outcome"], checks["stolen"]["outcome"]) == ("passed", "failed")
    assert "did not get to run" in checks["stolen"]["message"]


def waited_for_s(process: "subprocess.Popen[str]") -> float:
    """Seconds in which a process was ready to run and had no core."""
    return waited_s(Path(f"/proc/{process.pid}/schedstat")) or 0.0


def test_a_load_generator_without_its_core_makes_a_point_invalid(fleet: Fleet, tmp_path: Path) -> None:
    """Others work on the one core that it may use, and it is the least of them."""
    command = argv(fleet, tmp_path, [LONG])
    with_limits(tmp_path, waited_share=0.05)
    core = min(os.sched_getaffinity(0))
    process = load_of(fleet, command)
    os.setpriority(os.PRIO_PROCESS, process.pid, min(19, os.getpriority(os.PRIO_PROCESS, 0) + 10))
    os.sched_setaffinity(process.pid, {core})
    others = [subprocess.Popen(["taskset", "-c", str(core), "sh", "-c", "while :; do :; done"]) for _ in range(2)]
    try:
        eventually(lambda: waited_for_s(process) >= 3.0 or process.poll() is not None, "its waiting")
    finally:
        for other in others:
            other.kill()
            other.wait()
    checks = void_checks(process)
    assert checks["stolen"]["outcome"] == "failed"
    assert "waited for a core" in checks["stolen"]["message"]


def test_a_restarted_engine_makes_a_point_invalid(fleet: Fleet, tmp_path: Path) -> None:
    eventually(lambda: not any(e["residents"] for e in fleet.router.state()["engines"]), "an idle fleet")
    process = subprocess.Popen(argv(fleet, tmp_path, [LONG]), stdout=subprocess.PIPE, text=True)
    eventually(lambda: any(engine["residents"] for engine in fleet.router.state()["engines"]), "load")
    spec, engine = fleet.expanded.engines[3], fleet.engines[3]
    engine.kill()
    engine.wait(30)
    fleet.engines[3] = subprocess.Popen(simulated_argv(fleet.expanded, spec), stdout=subprocess.DEVNULL)
    out, _ = process.communicate(timeout=200)
    result = json.loads(out)
    assert (process.returncode, result["status"]) == (3, "degraded")
    checks = {check["name"]: check for check in result["data"]["points"][0]["verdict"]["checks"]}
    assert checks["engines"]["outcome"] == "failed"
    assert spec.id in checks["engines"]["message"]
    evidence = evidence_of(Path(result["artifacts"][0]))
    assert not evidence.verdict.valid
    assert evidence.verdict.passed is None
