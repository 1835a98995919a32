"""`narwhal demo` as a user runs it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.commands import environment, narwhal, processes_below

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]
SECONDS = os.environ.get("NARWHAL_TEST_DEMO_SECONDS", "45")


def test_the_demo_moves_fails_nothing_and_beats_the_static_split(tmp_path: Path) -> None:
    result = narwhal("demo", "--seconds", SECONDS, home=tmp_path)
    assert result["status"] == "success", result["errors"]
    data = result["data"]
    assert data["offered"] > 0
    assert data["failed"] == 0
    assert data["static"]["failed"] == data["static"]["cut"] == 0
    assert data["served"] + data["refused"] + data["failed"] + data["cancelled"] == data["offered"]
    assert data["static"]["offered"] == data["offered"]
    assert len(data["moves"]) >= 1
    assert all(move["source"] != move["target"] and move["reason"] for move in data["moves"])
    assert data["attainment"] > data["attainment_static"]
    assert list(tmp_path.iterdir()) == []
    assert processes_below(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_demo_and_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    argv = [sys.executable, "-m", "narwhal", "demo", "--seconds", "300", "--format", "json"]
    demo = subprocess.Popen(argv, env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert demo.stderr is not None
    for said in demo.stderr:
        if said.startswith("sending"):
            break
    assert len(processes_below(tmp_path)) >= 10
    demo.send_signal(number)
    out, err = demo.communicate(timeout=60)
    assert demo.returncode == 130, err
    assert '"interrupted"' in out
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []
    assert processes_below(tmp_path) == []


def test_a_killed_demo_takes_its_processes_with_it(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "narwhal", "demo", "--seconds", "300", "--format", "json"]
    demo = subprocess.Popen(argv, env=environment(tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert demo.stderr is not None
    for said in demo.stderr:
        if said.startswith(b"sending"):
            break
    demo.kill()
    demo.wait()
    demo.stderr.close()
    until_t = time.monotonic() + 30
    while left := processes_below(tmp_path):
        assert time.monotonic() < until_t, left
        time.sleep(0.1)
