"""A lone router that is killed goes on from what it kept on disk."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from narwhal.router import saved
from tests.e2e.commands import narwhal
from tests.router.harness import FakeEngine, Router, eventually, start_router, write_fleet

pytestmark = pytest.mark.e2e
RECOVERY = "probe_interval_s: 0.1, probe_timeout_s: 3, readmit_after: 1, state_path: kept/state.json"
BODY = {"prompt": "x", "max_tokens": 3}


@pytest.fixture
def engines() -> Iterator[list[FakeEngine]]:
    made = [FakeEngine() for _ in range(5)]
    yield made
    for engine in made:
        engine.close()


def order(router: Router, name: str, **body: object) -> None:
    status, _, text = router.send("POST", f"/narwhal/{name}", body, admin=True)
    assert status == 200, text


def engines_of(router: Router) -> dict[str, Any]:
    return {engine["id"]: engine for engine in router.state()["engines"]}


def begun(folder: Path, engines: list[FakeEngine], **options: Any) -> tuple[Router, Path, tuple[int, int]]:
    """A router that has orders, and has kept them."""
    fleet, *ports = write_fleet(folder, [e.port for e in engines], prefill=3, recovery=RECOVERY, **options)
    router = start_router(folder, fleet, *ports)
    eventually(router.ready, "the router's readiness")
    eventually(lambda: all(e["state"] == "live" for e in router.state()["engines"]), "the engines' life")
    for _ in range(20):
        assert router.send("POST", "/v1/completions", BODY)[0] == 200
    order(router, "move", engine="local/0", role="decode")
    order(router, "pin", engine="local/1", role="prefill")
    order(router, "drain", engines=["local/4"], stay=True)
    order(router, "hold", reason="tonight")
    path = router.state_dir / "kept" / "state.json"

    def kept() -> bool:
        found = saved.read(path)
        return found is not None and found.map.hold and found.map.engines["local/4"].drains and found.map.epoch == 1

    eventually(kept, "what is kept")
    return router, path, (ports[0], ports[1])


def again(folder: Path, router: Router, ports: tuple[int, int]) -> Router:
    """Another process after the first was killed."""
    router.process.kill()
    router.process.wait()
    argv = [sys.executable, "-m", "narwhal.cli.serve", "--fleet", str(folder / "fleet.yaml"), "--resume"]
    log = folder / "again.log"
    with log.open("wb") as file:
        process = subprocess.Popen([*argv, "--state-dir", str(folder / "state")], stdout=file, stderr=file)
    return Router(process, *ports, folder / "state", log)


def check(router: Router, before: dict[str, Any]) -> None:
    eventually(router.ready, "readiness again")
    eventually(lambda: engines_of(router)["local/4"]["state"] == "drained", "its drain")
    state, after = router.state(), engines_of(router)
    assert state["hold"] == {"on": True, "reason": "tonight"}
    assert state["epoch"] == 1
    for name, engine in before.items():
        assert [engine[key] for key in ("role", "pin", "generation")] == [
            after[name][key] for key in ("role", "pin", "generation")
        ]
    assert (after["local/4"]["drain"]["stays"], after["local/1"]["pin"]) == (True, "prefill")
    assert router.send("POST", "/v1/completions", BODY)[0] == 200


def test_after_sigkill_a_router_knows_its_orders_its_engines_and_what_it_learned(
    tmp_path: Path, engines: list[FakeEngine]
) -> None:
    router, _, ports = begun(tmp_path, engines)
    before = engines_of(router)
    eventually(lambda: saved.read(tmp_path / "state/kept/state.json").tokens_per_byte != 0, "a state")  # type: ignore[union-attr]
    second = again(tmp_path, router, ports)
    try:
        check(second, before)
        assert "it goes on from the state of" in second.log.read_text()
        assert "Traceback" not in second.log.read_text()
        links = json.loads(second.send("GET", "/narwhal/links", admin=True)[2])["links"]
        assert sum(link["handoffs"] for link in links) > 1  # more than it has served itself
        order(second, "readmit", engines=["local/4"])
        order(second, "unhold")
    finally:
        assert second.stop() == 0
    found = saved.read(tmp_path / "state/kept/state.json")
    assert found is not None
    assert (found.map.hold, found.map.engines["local/4"].drains) == (False, False)
    replayed = narwhal("simulate", "--replay", str(tmp_path / "state/journal"), home=tmp_path)["data"]
    assert replayed["different"] == 0, replayed


def test_a_state_that_the_crash_tore_is_passed_over_for_the_one_before_it(
    tmp_path: Path, engines: list[FakeEngine]
) -> None:
    router, path, ports = begun(tmp_path, engines)
    before = engines_of(router)
    order(router, "unhold")
    order(router, "hold", reason="tonight")

    def both() -> bool:
        files = [found for each in (path, saved.previous(path)) if each.exists() and (found := saved.read(each))]
        return len(files) == 2 and files[0].map.hold and all(found.map.engines["local/4"].drains for found in files)

    eventually(both, "two states that have all")
    router.process.kill()
    router.process.wait()
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    second = again(tmp_path, router, ports)
    try:
        eventually(second.ready, "readiness again")
        assert f"the state in {path} cannot be used: it is cut off" in second.log.read_text()
        after = engines_of(second)
        assert {n: e["role"] for n, e in after.items()} == {n: e["role"] for n, e in before.items()}
        assert second.send("POST", "/v1/completions", BODY)[0] == 200
    finally:
        assert second.stop() == 0


def test_an_engine_that_restarted_meanwhile_has_no_work_until_it_is_readmitted(
    tmp_path: Path, engines: list[FakeEngine]
) -> None:
    router, _, ports = begun(tmp_path, engines)
    router.process.kill()
    router.process.wait()
    engines[1].started_at = "1.9e9"
    engines[1].asked.clear()
    second = again(tmp_path, router, ports)
    try:
        eventually(second.ready, "readiness again")
        eventually(lambda: engines_of(second)["local/1"]["generation"] != "1.7e9", "the new life")
        eventually(lambda: engines_of(second)["local/1"]["state"] == "live", "its return")
        rows = [row["change"] for row in second.rows("engine") if row["engine"] == "local/1"]
        eventually(
            lambda: [r["change"] for r in second.rows("engine") if r["engine"] == "local/1"][-1] == "readmitted",
            "its row",
        )
        assert "ejected" in [r["change"] for r in second.rows("engine") if r["engine"] == "local/1"], rows
    finally:
        assert second.stop() == 0


def test_with_workers_the_next_process_that_decides_resumes_by_itself(
    tmp_path: Path, engines: list[FakeEngine]
) -> None:
    router, _, _ = begun(tmp_path, engines, workers=2)
    try:
        before = engines_of(router)
        children = Path(f"/proc/{router.process.pid}/task/{router.process.pid}/children").read_text().split()
        workers = {str(worker["pid"]) for worker in router.state()["workers"]}
        [control] = set(children) - workers
        uptime_s = router.state()["uptime_s"]
        eventually(lambda: router.state()["uptime_s"] > 11.0, "a life that counts")
        assert uptime_s >= 0
        subprocess.run(["kill", "-9", control], check=True)

        def next_one() -> bool:
            try:
                return bool(router.state()["uptime_s"] < 11.0) and router.ready()
            except OSError:
                return False

        eventually(next_one, "another process that decides")
        check(router, before)
    finally:
        assert router.stop() == 0


def test_resume_without_a_place_to_resume_from_is_said(tmp_path: Path, engines: list[FakeEngine]) -> None:
    fleet, _, _ = write_fleet(tmp_path, [engine.port for engine in engines])
    argv = [sys.executable, "-m", "narwhal.cli.serve", "--fleet", str(fleet), "--resume"]
    done = subprocess.run([*argv, "--state-dir", str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "recovery.state_path" in done.stderr + done.stdout
