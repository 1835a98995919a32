"""`narwhal advise` with processes of its own: the same answer as without, and none of them left after Ctrl-C."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from narwhal.advise.arms import ADAPTIVE, Arm
from narwhal.advise.case import Case
from narwhal.advise.runs import Job, runner
from tests.advise.fleets import base
from tests.router.harness import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]
ARGV = [sys.executable, "-m", "narwhal", "advise", "--profile", "70b-4xh100", "--engines", "2"]
ARGV += ["--mix", "steady:code", "--seeds", "1", "--format", "json"]


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def test_ctrl_c_ends_it_and_its_processes() -> None:
    argv = [*ARGV, "--seconds", "3000", "--processes", "2"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0)
    eventually(lambda: len(children(process.pid)) == 2, "two processes at work")
    workers = children(process.pid)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, json.loads(out)["status"]) == (130, "interrupted")
    assert "Traceback" not in err
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), "the end of its processes")


def test_processes_change_no_answer() -> None:
    about = base(seconds=60.0)
    jobs = [Job(Case(), arm, rate, 1) for arm in (Arm("colocated", "colocated"), *ADAPTIVE) for rate in (0.5, 1.0, 9.0)]
    with runner(about, 3000.0, 1) as alone, runner(about, 3000.0, 2) as several:
        assert several.hold(jobs) == alone.hold(jobs)
        assert several.count(jobs) == alone.count(jobs)
        assert several.done == alone.done == 2 * len(jobs)
