"""The router bench: from samples to rows, its errors, and one scene played on real processes."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import processes
import pytest
import run
import table
import tools
from routers import DIRECT, OURS
from scenes import Figure, Goal

ROOT = Path(__file__).parents[2]
FACTS: dict[str, Any] = {
    "command": "make bench-router",
    "date": "2026-11-30",
    "rounds": 3,
    "wall_s": 60.0,
    "machine": {"cpu": "C", "cores": 2, "kernel": "6.1", "python": "3.11.7"},
    "versions": {"narwhal": "0.1.0"},
    "load_average": [0.1, 0.2],
}
PEER, OTHER = "vllm-router", "sglang-router"


def rows(figure: Figure, *rounds: dict[str, dict[str, float]], peers: list[str], **missing: str) -> list[table.Row]:
    return table.rows_of(figure, rounds, peers, {k.replace("_", "-"): v for k, v in missing.items()})


def test_a_ratio_is_the_median_of_the_ratios_of_rounds() -> None:
    found = rows(
        Figure("cpu", "CPU", "µs", Goal(0.5)),
        *({OURS: {"cpu": ours}, PEER: {"cpu": peer}} for ours, peer in [(10, 100), (90, 100), (30, 50)]),
        peers=[PEER],
    )[0]
    assert (found.ours, found.peer, found.ratio, found.ratio_range) == (30, 100, 0.6, (0.1, 0.9))
    assert (found.goal, found.met, found.rounds) == ("ratio ≤ 0.50", False, 3)


def test_what_is_added_is_the_difference_to_no_router() -> None:
    samples = {OURS: {"ttft": 1.5}, PEER: {"ttft": 2.5}, DIRECT: {"ttft": 0.5}}
    found = rows(Figure("ttft", "added", "ms", Goal(0.75, 1.0), added=True), samples, peers=[PEER])[0]
    assert (found.ours, found.peer, found.ratio, found.met) == (1.0, 2.0, 0.5, True)


def test_a_peer_that_is_not_there_says_so_and_goals_are_for_the_reference() -> None:
    figure = Figure("cpu", "CPU", "µs", Goal(0.5))
    found = rows(figure, {OURS: {"cpu": 1.0}, OTHER: {"cpu": 2.0}}, peers=[PEER, OTHER], vllm_router="not installed")
    assert [row.against for row in found] == [PEER, OTHER]
    assert (found[0].ours, found[0].peer, found[0].met, found[0].note) == (1.0, None, None, "not installed")
    assert (found[1].ratio, found[1].goal, found[1].met, found[1].note) == (0.5, "", None, "")


@pytest.mark.parametrize(
    ("goal", "ours", "ratio", "met"),
    [
        (Goal(ratio=0.75, ours=1.0), 1.0, 0.75, True),
        (Goal(ratio=0.75, ours=1.0), 1.1, 0.5, False),
        (Goal(ratio=0.75, ours=1.0), 1.1, None, False),
        (Goal(ratio=0.75, ours=1.0), 0.5, None, None),
        (Goal(ours=0.9, at_least=True), 0.95, None, True),
        (Goal(ours=0.9, at_least=True), 0.85, None, False),
    ],
)
def test_goals(goal: Goal, ours: float, ratio: float | None, met: bool | None) -> None:
    assert goal.met(ours, ratio) is met


def test_the_page_keeps_what_stands_around_the_table(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    page.write_text(f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n")
    found = rows(Figure("cpu", "CPU", "µs", Goal(0.5)), {OURS: {"cpu": 1.0}, PEER: {"cpu": 4.0}}, peers=[PEER])
    table.write(found, FACTS, page)
    written = page.read_text()
    assert written.startswith(f"before\n{table.BEGIN}\n")
    assert written.endswith(f"{table.END}\nafter\n")
    assert "| CPU | µs | 1 | 4 (vllm-router) | 0.25 | ratio ≤ 0.50 | yes |" in written
    assert "old" not in written


def test_a_busy_machine_is_said() -> None:
    assert "do not" not in table.described(FACTS)
    assert "times in ms do not" in table.described({**FACTS, "load_average": [0.1, 7.0]})


def test_only_keeps_the_rows_that_hold_a_text() -> None:
    every = [figure.measure for scene in run.chosen("", 5000) for figure in scene.figures]
    kept = [figure.measure for scene in run.chosen("CONTINUATION", 5000) for figure in scene.figures]
    assert len(every) == len(set(every))
    assert kept == [name for name in every if "continuation" in name]
    assert len(kept) == 2
    assert "memory per stream, 5,000 streams" in every


def test_without_a_compiler_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tools, "BUILD", tmp_path)
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(tools.ToolError, match="apt-get install gcc"):
        tools.build()


def test_too_many_files_are_an_error_with_a_next_step() -> None:
    with pytest.raises(tools.ToolError, match="ulimit -Hn 1000000000000"):
        processes.raise_file_limit(10**12)


@pytest.mark.e2e
def test_ctrl_c_ends_every_process() -> None:
    argv = [sys.executable, str(ROOT / "bench" / "router" / "run.py"), "--rounds", "100", "--peer", "none"]
    bench = subprocess.Popen([*argv, "--only", "client leaves"], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        assert bench.stderr is not None
        assert b"round 1, client leaves" in bench.stderr.readline()
        started = set(processes.tree(bench.pid)) - {bench.pid}
        bench.send_signal(signal.SIGINT)
        assert bench.wait(60) == 130
        assert len(started) >= 2  # the engines and the router
        assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]
    finally:
        bench.kill()
        bench.wait()


@pytest.mark.e2e
def test_a_scene_on_real_processes() -> None:
    argv = [sys.executable, str(ROOT / "bench" / "router" / "run.py"), "--format", "json", "--rounds", "1"]
    done = subprocess.run(
        [*argv, "--peer", "none", "--only", "client leaves"], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["apiVersion"], document["kind"]) == ("narwhal/v1", "BenchRouter")
    [row] = document["data"]["rows"]
    assert {"measure", "ours", "peer", "ratio", "goal", "met"} <= row.keys()
    assert 0 < row["ours"] < 4000, row
    assert document["data"]["machine"]["cores"] >= 1
