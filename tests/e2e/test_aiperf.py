"""AIPerf, unmodified, against a router and simulated engines: `make client`.

It is no part of the suite: with its dependencies it is 860 MB, and it takes a minute to install. Its venv, `.aiperf`,
is kept. No model hub is asked for anything: the tokenizer is made on the spot.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from narwhal.report import read_runs
from tests.e2e.routers import Fleet, fleet_of

pytestmark = [pytest.mark.client, pytest.mark.timeout(1200)]
VERSION = "0.13.0"
REQUESTS, TOKENS = 20, 24


@pytest.fixture(scope="session")
def aiperf() -> Path:
    """The command, in a venv of its own."""
    venv = Path(__file__).parents[2] / ".aiperf"
    if not (venv / "installed").exists():
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        pip = [str(venv / "bin" / "pip"), "install", "-q", "--no-compile", "--disable-pip-version-check"]
        subprocess.run([*pip, f"aiperf=={VERSION}"], check=True)
        (venv / "installed").write_text(VERSION)
    return venv / "bin" / "aiperf"


@pytest.fixture(scope="session")
def tokenizer(aiperf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    script = Path(__file__).with_name("local_tokenizer.py")
    subprocess.run([str(aiperf.with_name("python")), str(script), str(folder)], check=True)
    return folder


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet_of(tmp_path_factory.mktemp("fleet"), 4, speed=4.0) as fleet:
        yield fleet


@pytest.mark.parametrize("kind", ["chat", "completions", "responses"])
def test_every_request_is_served_and_its_tokens_counted(
    fleet: Fleet, aiperf: Path, tokenizer: Path, tmp_path: Path, kind: str
) -> None:
    before = fleet.router.state()["counts"]["served"]
    argv = [str(aiperf), "profile", "-m", "m", "--url", fleet.router.url, "--endpoint-type", kind, "--streaming"]
    argv += ["--tokenizer", str(tokenizer), "--concurrency", "4", "--request-count", str(REQUESTS)]
    argv += ["--isl", "200", "--osl", str(TOKENS), "--extra-inputs", "ignore_eos:true", "--use-server-token-count"]
    argv += ["--workers-max", "1", "--record-processors", "1", "--no-gpu-telemetry", "--no-server-metrics"]
    argv += ["--ui", "none", "--artifact-dir", str(tmp_path)]
    nowhere = {"HF_ENDPOINT": "http://127.0.0.1:9"}
    done = subprocess.run(argv, env={**os.environ, **nowhere}, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-3000:]
    told: Any = json.loads((tmp_path / "profile_export_aiperf.json").read_text())
    assert (told["request_count"]["avg"], told["error_summary"]) == (REQUESTS, [])
    assert told["output_sequence_length"]["avg"] == TOKENS
    assert told["time_to_first_token"]["min"] > 0
    assert fleet.router.state()["counts"]["served"] - before == REQUESTS
    rows = fleet.router.rows("request")[-REQUESTS:]
    assert {row["completion_tokens"] for row in rows} == {TOKENS}
    (run,) = read_runs([tmp_path])
    (one,) = run.taken
    assert (one.point.source, one.point.served, len(one.requests)) == ("aiperf", REQUESTS, REQUESTS)
    assert one.point.tpot_s is not None
