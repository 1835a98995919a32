"""`vllm bench serve`, unmodified, against a router and simulated engines: it is there where vLLM is."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from narwhal.engine.cpu import NotInstallableError, prepare
from narwhal.report import read_runs
from tests.conftest import NOT_INSTALLABLE
from tests.e2e.routers import fleet_of

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]
SERVE = """
from argparse import ArgumentParser
from vllm.benchmarks import serve
parser = ArgumentParser()
serve.add_cli_args(parser)
serve.main(parser.parse_args())
"""
"""What `vllm bench serve` calls; the command itself wants vLLM's metadata, which the CPU's environment goes without."""
REQUESTS, PROMPT, TOKENS = 24, 64, 16


def test_every_request_is_served_and_its_tokens_counted(tmp_path: Path) -> None:
    try:
        vllm = prepare(print)
    except NotInstallableError as error:
        pytest.skip(f"{NOT_INSTALLABLE}{error}")
    with fleet_of(tmp_path, 4, speed=4.0) as fleet:
        argv = [str(vllm.python), "-c", SERVE, "--backend", "openai"]
        argv += [
            "--base-url",
            fleet.router.url,
            "--endpoint",
            "/v1/completions",
            "--model",
            "m",
            "--tokenizer",
            str(vllm.model),
        ]
        argv += ["--dataset-name", "random", "--random-input-len", str(PROMPT), "--random-output-len", str(TOKENS)]
        argv += ["--num-prompts", str(REQUESTS), "--request-rate", "8", "--ignore-eos", "--disable-tqdm"]
        argv += ["--save-result", "--save-detailed", "--result-dir", str(tmp_path), "--result-filename", "told.json"]
        offline = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
        done = subprocess.run(argv, env={**os.environ, **offline}, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
        told: Any = json.loads((tmp_path / "told.json").read_text())
        assert (told["completed"], told["total_output_tokens"]) == (REQUESTS, REQUESTS * TOKENS)
        asked = fleet.router.rows("request")
    rows = [row for row in asked if row["route"] == "/v1/completions"]  # it tokenizes its prompts at the router too
    assert {(row["outcome"], row["completion_tokens"]) for row in rows} == {("served", TOKENS)}
    assert len(rows) - REQUESTS in (0, 1)  # one to see whether anybody answers
    (run,) = read_runs([tmp_path / "told.json"])
    (one,) = run.taken
    assert (one.point.source, one.point.served) == ("vllm-bench", REQUESTS)
    assert one.point.ttft_s is not None
