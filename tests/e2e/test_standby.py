"""Two routers of one fleet, as processes: the standby takes over with what the primary knew."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from narwhal.dev.ports import free_run
from tests.router.harness import FakeEngine, Router, eventually, write_fleet

pytestmark = pytest.mark.e2e


@dataclass
class Pair:
    """Two routers on one host, and how to start either again."""

    folder: Path
    fleet: Path
    ports: dict[str, tuple[int, int]]
    engines: list[FakeEngine]
    routers: dict[str, Router]

    def start(self, name: str) -> Router:
        """Start the `primary` or the `standby`."""
        log = self.folder / f"{name}.log"
        argv = [sys.executable, "-m", "narwhal.cli.serve", "--fleet", str(self.fleet)]
        argv += ["--state-dir", str(self.folder / "state"), *(["--standby"] if name == "standby" else [])]
        with log.open("ab") as file:
            process = subprocess.Popen(argv, stdout=file, stderr=file, stdin=subprocess.DEVNULL)
        port, admin_port = self.ports[name]
        self.routers[name] = Router(process, port, admin_port, self.folder / "state", log)
        return self.routers[name]

    def stop(self) -> None:
        for router in self.routers.values():
            if router.process.poll() is None:
                os.kill(router.process.pid, signal.SIGCONT)
                router.process.kill()
                router.process.wait(30)
        for engine in self.engines:
            engine.close()


@contextlib.contextmanager
def pair_of(folder: Path, lease: str, engines: int = 4, **options: Any) -> Iterator[Pair]:
    fakes = [FakeEngine() for _ in range(engines)]
    fleet, port, admin_port = write_fleet(folder, [engine.port for engine in fakes], **options)
    own, own_admin = (free_run(1), free_run(1))
    text = fleet.read_text().replace(
        "  primary: local\n", f"  primary: local\n  standby: local\n  standby_port: {own}\n"
    )
    text = text.replace(f"admin: {{port: {admin_port}", f"admin: {{port: {admin_port}, standby_port: {own_admin}")
    fleet.write_text(f"{text}lease: {lease}\n")
    pair = Pair(folder, fleet, {"primary": (port, admin_port), "standby": (own, own_admin)}, fakes, {})
    try:
        yield pair
    finally:
        pair.stop()


def all_live(router: Router) -> bool:
    return all(engine["state"] == "live" for engine in router.state()["engines"])


def roles(router: Router) -> dict[str, str]:
    return {engine["id"]: engine["role"] for engine in router.state()["engines"]}


def complete(router: Router) -> tuple[int, dict[str, str], Any]:
    status, headers, body = router.send("POST", "/v1/completions", {"prompt": "x", "max_tokens": 3})
    return status, headers, json.loads(body)


def both_ready(pair: Pair) -> tuple[Router, Router]:
    """The primary leads, and the standby follows."""
    primary = pair.start("primary")
    eventually(primary.ready, "the primary's readiness")
    eventually(lambda: all_live(primary), "the engines' life")
    standby = pair.start("standby")
    standby.wait_listening()
    eventually(lambda: "its state comes" in standby.log.read_text(), "the standby's following")
    return primary, standby


def test_a_killed_primary_is_followed_by_a_standby_that_knows_what_it_knew(tmp_path: Path) -> None:
    with pair_of(tmp_path, "{backend: file}") as pair:
        primary, standby = both_ready(pair)
        status, headers, body = complete(standby)
        assert (status, headers["retry-after"], body["error"]["code"]) == (503, "1", "standby")
        assert json.loads(standby.send("GET", "/ready")[2]) == {"ready": False, "reason": "standby"}
        for path in ("/narwhal/hold", "/narwhal/unhold"):
            assert standby.send("POST", path, {}, admin=True)[0] == 503

        for _ in range(40):
            assert complete(primary)[0] == 200
        move = {"engine": "local/0", "role": "decode"}
        assert primary.send("POST", "/narwhal/move", move, admin=True)[0] == 200
        eventually(lambda: roles(primary)["local/0"] == "decode", "the move")
        assert primary.send("POST", "/narwhal/hold", {"reason": "tonight"}, admin=True)[0] == 200
        before = primary.state()
        known = standby.send("GET", "/metrics", admin=True)[2].decode()
        lines = int(
            next(x for x in known.splitlines() if x.startswith("narwhal_follow_lines_total")).split()[1].split(".")[0]
        )

        def followed() -> bool:
            page = standby.send("GET", "/metrics", admin=True)[2].decode()
            line = next(x for x in page.splitlines() if x.startswith("narwhal_follow_lines_total"))
            return float(line.split()[1]) >= lines + 2

        eventually(followed, "a line that was made after all that")
        primary.process.kill()
        primary.process.wait()
        eventually(standby.ready, "the standby's readiness")
        assert complete(standby)[0] == 200
        after = standby.state()
        assert roles(standby) == {"local/0": "decode", "local/1": "prefill", "local/2": "decode", "local/3": "decode"}
        assert after["hold"] == before["hold"] == {"on": True, "reason": "tonight"}
        assert after["epoch"] == before["epoch"] == 1
        assert {e["id"]: e["generation"] for e in after["engines"]} == {
            e["id"]: e["generation"] for e in before["engines"]
        }
        assert standby.send("POST", "/narwhal/unhold", {}, admin=True)[0] == 200

        again = pair.start("primary")
        again.wait_listening()
        eventually(
            lambda: "its state comes" in again.log.read_text().split("standby")[-1], "the former one's following"
        )
        assert complete(again)[0] == 503
        assert complete(standby)[0] == 200
