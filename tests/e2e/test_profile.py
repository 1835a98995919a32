"""`narwhal profile` against real simulated engines, whose true curves are known."""

import http.client
import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from narwhal.engine.launch import simulated_argv
from narwhal.fleet import Profile, load_profile, open_fleet
from tests.e2e.commands import narwhal
from tests.e2e.routers import answers
from tests.router.harness import eventually, write_fleet

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A fleet file whose two engines run; no router."""
    folder = tmp_path_factory.mktemp("profile")
    path, _, _ = write_fleet(folder, [], count=2, seqs=16)
    expanded = open_fleet(path)
    engines = [subprocess.Popen(simulated_argv(expanded, engine)) for engine in expanded.engines]
    try:
        for engine in expanded.engines:
            eventually(lambda url=engine.url: answers(url), f"{engine.id}'s health")  # type: ignore[misc]
        yield path
    finally:
        for process in engines:
            process.terminate()
            process.wait()


ANY_ERROR = ("--max-error", "9", "--max-left-out", "9")
"""On a busy machine the samples scatter; how far is what a refusal is for, and not asserted here."""


def test_a_sweep_finds_the_curves_that_the_engines_follow(fleet: Path) -> None:
    result = narwhal("profile", str(fleet), "--short", *ANY_ERROR, home=fleet.parent)
    assert result["status"] == "success", result["errors"]
    [path] = result["artifacts"]
    measured = load_profile(path)
    true = load_profile("demo")
    assert measured.measured is not None
    assert len(measured.measured.engines) == 2
    assert {(pair.producer, pair.consumer) for pair in measured.pairs} == {
        (a, b) for a in measured.measured.engines for b in measured.measured.engines if a != b
    }
    # The curves are slopes, so a slow machine's constant delays do not move them far.
    assert measured.prefill.b_s_per_token == pytest.approx(true.prefill.b_s_per_token, rel=0.3)
    assert measured.kv_bytes_per_token == true.kv_bytes_per_token
    assert measured.kv_capacity_tokens == true.kv_capacity_tokens
    samples = sorted((Path(path).parent / "samples").glob("*.jsonl"))
    before = [file.read_bytes() for file in samples]
    again = narwhal("profile", str(fleet), "--short", *ANY_ERROR, home=fleet.parent)
    assert again["status"] == "success"
    assert [file.read_bytes() for file in samples] == before, "nothing is measured twice"
    refit = Profile.model_validate(again["data"]["profiles"][0])
    assert refit.prefill == measured.prefill


def test_a_bad_fit_is_refused_with_its_picture(fleet: Path) -> None:
    folder = fleet.parent / "strict"
    samples = folder / "samples"
    samples.mkdir(parents=True)
    for file in (fleet.parent / "profiles" / "samples").glob("*.jsonl"):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        for line in lines:
            if line["sample"]["sample"] == "decode" and line["sample"]["requests"] > 1:
                line["sample"]["interval_s"] *= 1 + 3 * (line["sample"]["prompt_tokens"] % 7)
        (samples / file.name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = narwhal("profile", str(fleet), "--short", "--out", str(folder), "--max-error", "0.02", home=fleet.parent)
    assert result["status"] == "findings"
    assert result["artifacts"] == []
    assert any("curve" in error["message"] for error in result["errors"])
    assert not list(folder.glob("*.json"))


def test_busy_and_missing_engines_are_named(fleet: Path, tmp_path: Path) -> None:
    engine = open_fleet(fleet).engines[0]
    started = threading.Event()

    def hold() -> None:
        connection = http.client.HTTPConnection(engine.address, engine.port, timeout=300)
        body = {"prompt": [5] * 64, "max_tokens": 4000, "stream": True, "ignore_eos": True}
        connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        answer.readline()
        started.set()
        release.wait(300)
        connection.close()

    release = threading.Event()
    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert started.wait(120)
        result = narwhal("profile", str(fleet), "--short", "--out", str(tmp_path), home=fleet.parent)
    finally:
        release.set()
        thread.join()
    assert result["status"] == "failed"
    assert f"{engine.id} has 1" in result["errors"][0]["message"]
    unknown = narwhal("profile", str(fleet), "--engine", "nowhere/9", home=fleet.parent)
    assert unknown["status"] == "unusable"
    assert engine.id in unknown["errors"][0]["hint"]
