"""`narwhal check` against real simulated engines, with faults on demand: the right engine is named, and no other."""

import http.client
import json
import os
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from narwhal.documents import problems
from narwhal.engine.launch import simulated_argv
from narwhal.engine.render import render_launch
from narwhal.fleet import Expanded, open_fleet
from narwhal.profiling import save_profile
from tests.e2e.commands import narwhal
from tests.e2e.routers import answers
from tests.preflight.profiles import measured_profile
from tests.router.harness import eventually, write_fleet

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]
IDS = ["local/0", "local/1", "local/2"]


class Fleet:
    """Three engines, and the file that names them."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.expanded: Expanded = open_fleet(file)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, engine: str, change: Callable[[list[str]], list[str]] = lambda argv: argv) -> None:
        spec = self.expanded.engine(engine)
        self.processes[engine] = subprocess.Popen(change(simulated_argv(self.expanded, spec)))
        eventually(lambda: answers(spec.url), f"{engine}'s health")

    def stop(self, engine: str) -> None:
        process = self.processes.pop(engine)
        process.send_signal(signal.SIGCONT)
        process.terminate()
        process.wait()

    def fault(self, engine: str, fault: dict[str, Any] | None) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.expanded.engine(engine).port, timeout=60)
        if fault is None:
            connection.request("DELETE", "/simulate/faults")
        else:
            connection.request("POST", "/simulate/faults", json.dumps(fault))
        assert connection.getresponse().status == 200
        connection.close()

    def engine_id(self, engine: str) -> str:
        """The id that peers know an engine by, as its leg 1 tells it."""
        connection = http.client.HTTPConnection("127.0.0.1", self.expanded.engine(engine).port, timeout=60)
        body = {"prompt": "x", "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
        connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        told = json.loads(connection.getresponse().read())["kv_transfer_params"]["remote_engine_id"]
        assert isinstance(told, str)
        return told

    def check(self, *options: str) -> dict[str, Any]:
        return narwhal("check", str(self.file), *options, home=self.file.parent)

    @contextmanager
    def faulty(self, engine: str, /, **fault: Any) -> Iterator[None]:
        self.fault(engine, fault)
        try:
            yield
        finally:
            self.fault(engine, None)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    path, _, _ = write_fleet(tmp_path_factory.mktemp("check"), [], count=3, seqs=16)
    found = Fleet(path)
    try:
        for engine in IDS:
            found.start(engine)
        yield found
    finally:
        for engine in list(found.processes):
            found.stop(engine)


def bad(result: dict[str, Any], *statuses: str) -> dict[tuple[str, str], dict[str, Any]]:
    """The checks of some statuses, by name and subject."""
    checks = result["data"]["preflight"]["checks"]
    return {(one["name"], one["subject"]): one for one in checks if one["status"] in (statuses or ("FAIL",))}


def test_a_healthy_fleet_is_ok_and_the_evidence_says_why(fleet: Fleet) -> None:
    result = fleet.check()
    assert (result["status"], result["errors"]) == ("success", [])
    document = result["data"]["preflight"]
    assert problems(document, "preflight") == []
    [path] = result["artifacts"]
    assert json.loads(Path(path).read_text()) == document
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert {(pair["producer"], pair["consumer"]) for pair in document["pairs"]} == {
        (a, b) for a in IDS for b in IDS if a != b
    }
    for pair in document["pairs"]:
        assert pair["moved_tokens"] in (pair["prompt_tokens"] - 1, pair["prompt_tokens"])
        assert pair["moved_bytes"] > 0
    assert {one["name"] for one in bad(result, "SKIP").values()} == {
        *("launch", "compatible", "profile", "pace", "slo")
    }
    assert set(document["contracts"]) == set(document["versions"]) == set(IDS)
    assert document["first_token"]["advised_s"] >= 2
    assert document["first_token"]["at_once"] == 4
    assert len(document["transports"]) == 6
    for one in document["transports"]:
        assert one["prompt_tokens"] > 1000
        assert one["moved_bytes"] / one["transfer_s"] > 0


def test_a_ring_hands_over_as_often_as_asked_and_leaves_the_rest_out(fleet: Fleet) -> None:
    result = fleet.check("--ring", "--repeats", "2", "--only", "consume")
    document = result["data"]["preflight"]
    assert [(pair["producer"], pair["consumer"], pair["handoffs"]) for pair in document["pairs"]] == [
        ("local/0", "local/1", 2),
        ("local/1", "local/2", 2),
        ("local/2", "local/0", 2),
    ]
    assert {one["name"] for one in document["checks"]} == {"reach", "consume"}


def test_with_a_profile_pace_and_promises_are_judged(fleet: Fleet) -> None:
    contract = fleet.check("--only", "contract")["data"]["preflight"]["contracts"]["local/0"]
    profile = measured_profile().model_copy(update={"contract": contract})
    folder = fleet.file.parent / "profiles"
    path = save_profile(folder, profile)
    try:
        result = fleet.check("--only", "profile", "--only", "pace", "--only", "slo", "--timeout", "60")
    finally:
        path.unlink()
    checks = {(one["name"], one["subject"]): one for one in result["data"]["preflight"]["checks"]}
    for engine in IDS:
        assert checks["profile", engine]["status"] == "ok"
        assert checks["slo", engine]["status"] == "ok"
        pace = checks["pace", engine]  # how fast a busy machine is, is not asserted
        assert pace["status"] != "SKIP"
        assert "batch 1: " in pace["reason"]
        assert "batch 4: " in pace["reason"]


def test_a_check_that_is_not_known_is_refused(fleet: Fleet) -> None:
    result = fleet.check("--only", "nonsense")
    assert (result["exit_code"], result["errors"][0]["code"]) == (2, "check")


def test_corrupt_kv_fails_every_pair_of_its_producer_and_no_other(fleet: Fleet) -> None:
    with fleet.faulty("local/1", kind="corrupt_kv", side="producer"):
        result = fleet.check()
    assert result["exit_code"] == 1
    failed = bad(result)
    assert set(failed) == {("consume", "local/1 > local/0"), ("consume", "local/1 > local/2")}
    assert all("in which local/1 sends" in one["next_step"] for one in failed.values())


def test_a_hung_engine_is_not_reached_and_nobody_else_is_blamed(fleet: Fleet) -> None:
    fleet.processes["local/2"].send_signal(signal.SIGSTOP)
    try:
        result = fleet.check("--timeout", "3")
    finally:
        fleet.processes["local/2"].send_signal(signal.SIGCONT)
    assert result["exit_code"] == 1
    assert set(bad(result)) == {("reach", "local/2")}
    assert "within 3 s" in bad(result)[("reach", "local/2")]["reason"]
    skipped = {subject for name, subject in bad(result, "SKIP") if name == "consume"}
    assert skipped == {f"{a} > {b}" for a in IDS for b in IDS if a != b and "local/2" in (a, b)}


@pytest.mark.parametrize("scope", ["prefill", "decode"])
def test_an_engine_that_answers_health_and_nothing_else_is_found_by_its_pairs(fleet: Fleet, scope: str) -> None:
    with fleet.faulty("local/0", kind="hang", scope=scope):
        result = fleet.check("--only", "produce", "--only", "consume", "--timeout", "10")
    failed = bad(result)
    assert failed
    for one in failed.values():
        assert "local/0: " in one["reason"]
        assert not any(f"{innocent} does not answer" in one["reason"] for innocent in ("local/1", "local/2"))
    assert not any(subject in ("local/1 > local/2", "local/2 > local/1") for _, subject in failed)


def test_engines_that_do_not_reach_each_other_are_told_from_hung_ones(fleet: Fleet) -> None:
    with fleet.faulty("local/0", kind="drop_peer", engine=fleet.engine_id("local/1")):
        result = fleet.check("--only", "consume", "--timeout", "30")
    failed = bad(result)
    assert set(failed) == {("consume", "local/0 > local/1")}
    one = failed[("consume", "local/0 > local/1")]
    assert "both engines answer alone" in one["reason"]
    assert "side channel" in one["next_step"]


def test_another_model_on_one_engine_is_that_engine_s_failure(fleet: Fleet) -> None:
    fleet.stop("local/1")
    try:
        gone = fleet.check("--only", "reach")
        assert set(bad(gone)) == {("reach", "local/1")}
        assert "refused" in bad(gone)[("reach", "local/1")]["reason"]
        fleet.start("local/1", lambda argv: [*argv, "--model", "other", "--max-num-seqs", "16"])
        result = fleet.check()
        assert ("model", "local/1") in bad(result)
        assert "serves other" in bad(result)[("model", "local/1")]["reason"]
        blamed = {subject for _, subject in bad(result)}
        assert blamed <= {"local/1", "local/0 > local/1", "local/2 > local/1"}
    finally:
        if "local/1" in fleet.processes:
            fleet.stop("local/1")
        fleet.start("local/1")


def test_an_engine_of_another_launch_is_told_by_its_names(fleet: Fleet) -> None:
    right = render_launch(fleet.expanded, fleet.expanded.engine("local/1")).digest().removeprefix("sha256:")
    try:
        for engine, digest in (("local/1", right), ("local/2", "ab" * 32)):
            fleet.stop(engine)
            fleet.start(engine, lambda argv, digest=digest: [*argv, "--alias", f"narwhal.launch.{digest}"])  # type: ignore[misc]
        result = fleet.check("--only", "launch")
        assert set(bad(result)) == {("launch", "local/2")}
        assert set(bad(result, "SKIP")) == {("launch", "local/0")}
        assert "narwhal engine render" in bad(result)[("launch", "local/2")]["next_step"]
    finally:
        for engine in ("local/1", "local/2"):
            if engine in fleet.processes:
                fleet.stop(engine)
            fleet.start(engine)


def test_engines_of_two_contracts_are_told_apart(fleet: Fleet) -> None:
    fleet.stop("local/2")
    try:
        fleet.start("local/2", lambda argv: [*argv, "--profile", "8b-h200"])
        result = fleet.check("--only", "contract")
        assert set(bad(result)) == {("contract", "local/2")}
        assert "geometry." in bad(result)[("contract", "local/2")]["reason"]
    finally:
        fleet.stop("local/2")
        fleet.start("local/2")
