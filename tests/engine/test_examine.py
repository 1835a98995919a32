"""Examining a running engine."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from narwhal.engine.examine import ANSWER_TOKENS, ExamineError, examine, fingerprint
from narwhal.engine.record import EngineLaunch, write_launch
from narwhal.engine.render import render_launch
from narwhal.engine.starting import start_argv
from narwhal.fleet import open_fleet
from tests.router.harness import write_fleet

GENERATION = "11111111-2222-3333-4444-555555555555"


def launch_of(folder: Path) -> EngineLaunch:
    path, _, _ = write_fleet(folder, [], count=2)
    expanded = open_fleet(path)
    return render_launch(expanded, expanded.engines[0])


@pytest.fixture(scope="module")
def launch(tmp_path_factory: pytest.TempPathFactory) -> EngineLaunch:
    return launch_of(tmp_path_factory.mktemp("fleet"))


@pytest.fixture(scope="module")
def _engine(launch: EngineLaunch) -> Iterator[None]:
    process = subprocess.Popen(start_argv(launch, GENERATION), stderr=subprocess.DEVNULL)
    yield
    process.terminate()
    process.wait(30)


@pytest.mark.e2e
@pytest.mark.usefixtures("_engine")
def test_an_engine_is_found_as_it_was_launched(launch: EngineLaunch, tmp_path: Path) -> None:
    write_launch(launch, tmp_path / "launch.json")
    argv = [sys.executable, "-m", "narwhal", "engine", "examine", "--launch", str(tmp_path / "launch.json")]
    done = subprocess.run([*argv, "--format", "json"], capture_output=True, text=True, timeout=120, check=True)
    data = json.loads(done.stdout)["data"]
    assert data["engine"] == launch.engine
    assert data["attestation"]["generation"] == GENERATION
    assert data["attestation"]["running_launch_digest"] == launch.digest()
    assert data["attestation"]["cache"]["block_tokens"] > 0
    assert data["answer_tokens"] == ANSWER_TOKENS
    assert data["fingerprint"] == fingerprint(data["attestation"])


def test_the_contract_is_what_legs_share_and_no_more() -> None:
    seen: dict[str, Any] = {
        "version": "0.32.0",
        "connector": "NixlConnector",
        "compatibility_hash": "c0ffee",
        "model_digest": None,
        "max_model_len": 4096,
        "engine": "a/0",
        "generation": "1",
        "cache": {"dtype": "auto", "block_tokens": 16, "bytes_per_token": 1024, "layout": "HND", "blocks": 100},
    }
    same = seen | {"engine": "b/0", "generation": "2", "cache": seen["cache"] | {"blocks": 200}}
    assert fingerprint(same) == fingerprint(seen)
    assert fingerprint(seen | {"version": "0.33.0"}) != fingerprint(seen)
    assert fingerprint(seen | {"cache": seen["cache"] | {"layout": "NHD"}}) != fingerprint(seen)


@pytest.mark.e2e
@pytest.mark.usefixtures("_engine")
def test_an_engine_that_was_started_otherwise_is_to_be_restarted(launch: EngineLaunch) -> None:
    other = launch.model_copy(update={"kv_lease_s": launch.kv_lease_s + 1})
    with pytest.raises(ExamineError, match=f"runs the launch {launch.digest()}, not {other.digest()}") as raised:
        examine(other, deadline_s=60)
    assert raised.value.next_step == "restart it: systemctl restart narwhal-engine@0"


@pytest.mark.e2e
@pytest.mark.usefixtures("_engine")
def test_an_engine_that_serves_another_model_is_named(launch: EngineLaunch) -> None:
    other = launch.model_copy(update={"model": launch.model.model_copy(update={"name": "another"})})
    with pytest.raises(ExamineError):
        examine(other, deadline_s=60)


def test_an_engine_that_is_not_there_is_not_healthy(tmp_path: Path) -> None:
    launch = launch_of(tmp_path)
    with pytest.raises(ExamineError, match=r"is not healthy after 0 s: port \d+: ") as raised:
        examine(launch, deadline_s=0)
    assert raised.value.next_step == "see why: journalctl -u narwhal-engine@0 -n 50"
