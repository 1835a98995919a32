"""Results of other tools: files of real runs against simulated engines, cut down to what a report reads."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from narwhal.report import read_runs
from narwhal.report.document import ReportPoint, Spread
from narwhal.report.taken import Taken

RESULTS = Path(__file__).with_name("results")
AIPERF = RESULTS / "aiperf/profile_export_aiperf.json"
GUIDELLM, VLLM = RESULTS / "benchmarks.json", RESULTS / "vllm.json"


def taken(path: Path) -> Taken:
    (run,) = read_runs([path])
    assert run.unusable == []
    (one,) = run.taken
    return one


def wrong(path: Path) -> str:
    (run,) = read_runs([path])
    assert run.taken == []
    return run.unusable[0].reason


def close(spread: Spread | None, told_ms: dict[str, float]) -> bool:
    """Whether quantiles are the tool's own, to within what interpolation between neighbours does."""
    assert spread is not None
    return all(getattr(spread, name) == pytest.approx(told_ms[name] / 1e3, rel=0.05) for name in ("p50", "p90"))


@pytest.mark.parametrize(("path", "source"), [(AIPERF, "aiperf"), (GUIDELLM, "guidellm"), (VLLM, "vllm-bench")])
def test_a_point_says_whose_it_is_and_that_nobody_reconciled_it(path: Path, source: str) -> None:
    point: ReportPoint = taken(path).point
    assert (point.source, point.standing, point.point) == (source, "unreconciled", "poisson-4")
    assert (point.offered, point.served, point.failed) == (30, 30, 0)
    assert (point.asked_rps, point.attainment, point.moves, point.slo) == (4.0, None, None, None)
    assert point.kept_rps is not None
    assert 3 < point.kept_rps < 10
    assert point.started_at.startswith("2026-11-30T")


def test_aiperf_s_inter_token_latency_is_tpot_and_its_chunks_are_gaps() -> None:
    told = json.loads(AIPERF.read_text())
    point = taken(AIPERF).point
    assert close(point.ttft_s, told["time_to_first_token"])
    assert close(point.tpot_s, told["inter_token_latency"])
    assert point.gap_s is not None
    assert point.tpot_s is not None
    assert point.gap_s.p50 is not None
    assert point.tpot_s.p50 is not None
    assert point.gap_s.p50 > point.tpot_s.p50
    assert point.lag_p99_s is not None


def test_guidellm_s_inter_token_latency_is_tpot_and_its_time_per_output_token_is_not() -> None:
    metrics = json.loads(GUIDELLM.read_text())["benchmarks"][0]["metrics"]
    point = taken(GUIDELLM).point
    told = {name: figure["successful"]["percentiles"] for name, figure in metrics.items() if name.endswith("_ms")}
    assert close(point.tpot_s, told["inter_token_latency_ms"])
    assert not close(point.tpot_s, told["time_per_output_token_ms"])
    assert close(point.ttft_s, told["time_to_first_token_ms"])
    assert point.gap_s is None


def test_vllm_s_tpot_is_the_mean_gap_and_its_itl_holds_the_longest() -> None:
    told = json.loads(VLLM.read_text())
    point = taken(VLLM).point
    for time in ("ttft", "tpot"):
        assert close(getattr(point, f"{time}_s"), {name: told[f"{name}_{time}_ms"] for name in ("p50", "p90")})
    assert point.gap_s is not None
    assert point.gap_s.p99 == pytest.approx(max(map(max, told["itls"])))


def changed(source: Path, tmp_path: Path, **values: Any) -> Path:
    document = {**json.loads(source.read_text()), **values}
    path = tmp_path / source.name
    path.write_text(json.dumps({key: value for key, value in document.items() if value is not None}))
    return path


def test_failed_requests_of_vllm_count_as_failed_and_have_no_times(tmp_path: Path) -> None:
    one = taken(changed(VLLM, tmp_path, errors=["broken"] * 10 + [""] * 20))
    assert (one.point.offered, one.point.served, one.point.failed) == (30, 20, 10)
    assert one.point.ttft_s is not None
    assert one.point.ttft_s.count == 20
    assert [seen.ttft_s is None for seen in one.requests] == [True] * 10 + [False] * 20


def test_all_at_once_has_no_rate(tmp_path: Path) -> None:
    one = taken(changed(VLLM, tmp_path, request_rate="inf"))
    assert (one.point.point, one.point.asked_rps) == ("burst", None)


def test_vllm_without_its_requests_is_refused_with_what_to_do(tmp_path: Path) -> None:
    assert "--save-detailed" in wrong(changed(VLLM, tmp_path, ttfts=None))


def test_aiperf_without_its_records_is_refused(tmp_path: Path) -> None:
    shutil.copy(AIPERF, tmp_path)
    assert "profile_export.jsonl is not beside it" in wrong(tmp_path)


def test_ends_of_aiperf_s_requests_are_told_apart(tmp_path: Path) -> None:
    shutil.copytree(AIPERF.parent, tmp_path / "run")
    records = tmp_path / "run/profile_export.jsonl"
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    lines[0]["error"] = {"code": 429, "type": "TooMany", "message": "no"}
    lines[1]["error"] = {"code": 500, "type": "Server", "message": "no"}
    lines[2]["metadata"]["was_cancelled"] = True
    lines[3]["metadata"]["benchmark_phase"] = "warmup"
    records.write_text("\n".join(map(json.dumps, lines)))
    point = taken(tmp_path).point
    assert (point.offered, point.served, point.refused, point.failed, point.cancelled) == (29, 26, 1, 1, 1)


def test_ends_of_guidellm_s_requests_are_told_apart(tmp_path: Path) -> None:
    document = json.loads(GUIDELLM.read_text())
    lists = document["benchmarks"][0]["requests"]
    served = lists["successful"]
    lists.update(successful=served[2:], errored=served[:1], incomplete=[{"request_start_time": None}, served[1]])
    path = tmp_path / "g.json"
    path.write_text(json.dumps(document))
    point = taken(path).point
    assert (point.offered, point.served, point.failed, point.cancelled) == (30, 28, 1, 1)


def test_a_simulation_gives_a_point_for_each_policy() -> None:
    (run,) = read_runs([RESULTS / "simulate.json"])
    assert [(one.point.policy, one.point.standing) for one in run.taken] == [
        ("reactive", "simulated"),
        ("static:2p2d", "simulated"),
    ]
    assert run.taken[0].point.attainment == pytest.approx(0.3896, abs=1e-4)
    assert run.taken[0].point.point == "turning:code,reas:30"


def test_a_result_that_lacks_what_is_read_says_what(tmp_path: Path) -> None:
    document = json.loads(VLLM.read_text())
    del document["itls"]
    path = tmp_path / "x.json"
    path.write_text(json.dumps(document))
    assert "it lacks what a report needs: KeyError 'itls'" in wrong(path)
    path.write_text("{")
    assert "no JSON" in wrong(path)


def test_no_prompt_address_or_path_is_in_these_files() -> None:
    for path in RESULTS.rglob("*.json*"):
        text = path.read_text()
        assert [
            word for word in ("127.0.0.1", "http", "/tmp", "/root", "generated_texts", "messages") if word in text
        ] == []
