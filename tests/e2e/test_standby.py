"""Two routers of one fleet, as processes: the standby takes over with what the primary knew."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from narwhal.dev.ports import free_run
from tests.e2e.commands import narwhal
from tests.router.harness import FakeEngine, Router, eventually, write_fleet
from tests.router.lease.conftest import Etcd

pytestmark = pytest.mark.e2e


@dataclass
class Pair:
    """Two routers on one host, and how to start either again."""

    folder: Path
    fleet: Path
    ports: dict[str, tuple[int, int]]
    engines: list[FakeEngine]
    routers: dict[str, Router]
    given: socket.socket | None = None
    """For clients, as systemd passes it to both; None: each opens its own."""

    def start(self, name: str) -> Router:
        """Start the `primary` or the `standby`."""
        log = self.folder / f"{name}.log"
        argv = [sys.executable, "-m", "narwhal.cli.serve", "--fleet", str(self.fleet)]
        argv += ["--state-dir", str(self.folder / "state"), *(["--standby"] if name == "standby" else [])]
        more: dict[str, Any] = {}
        if (given := self.given) is not None:
            more = {"pass_fds": (3,), "preexec_fn": lambda: os.dup2(given.fileno(), 3)}
            argv = ["sh", "-c", 'LISTEN_FDS=1 LISTEN_PID=$$ exec "$@"', "sh", *argv]
        with log.open("ab") as file:
            process = subprocess.Popen(argv, stdout=file, stderr=file, stdin=subprocess.DEVNULL, **more)
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
        if self.given is not None:
            self.given.close()


@contextlib.contextmanager
def pair_of(folder: Path, lease: str, engines: int = 4, *, given: bool = False, **options: Any) -> Iterator[Pair]:
    fakes = [FakeEngine() for _ in range(engines)]
    fleet, port, admin_port = write_fleet(folder, [engine.port for engine in fakes], **options)
    own, own_admin = (free_run(1), free_run(1))
    text = fleet.read_text().replace(
        "  primary: local\n", f"  primary: local\n  standby: local\n  standby_port: {own}\n"
    )
    text = text.replace(f"admin: {{port: {admin_port}", f"admin: {{port: {admin_port}, standby_port: {own_admin}")
    fleet.write_text(f"{text}lease: {lease}\n")
    pair = Pair(folder, fleet, {"primary": (port, admin_port), "standby": (own, own_admin)}, fakes, {})
    if given:
        fleet.write_text(fleet.read_text().replace(f"  standby_port: {own}\n", ""))
        pair.ports["standby"] = (port, own_admin)
        pair.given = socket.create_server(("127.0.0.1", port))
    try:
        yield pair
    finally:
        pair.stop()


def all_live(router: Router) -> bool:
    return all(engine["state"] == "live" for engine in router.state()["engines"])


def roles(router: Router) -> dict[str, str]:
    return {engine["id"]: engine["role"] for engine in router.state()["engines"]}


def follows(router: Router) -> bool:
    """Whether it hears the router that leads."""
    assert router.process.poll() is None, router.log.read_text()
    try:
        return router.state()["lease"]["lag_s"] is not None
    except OSError:
        return False


def complete(router: Router) -> tuple[int, dict[str, str], Any]:
    status, headers, body = router.send("POST", "/v1/completions", {"prompt": "x", "max_tokens": 3})
    return status, headers, json.loads(body)


def both_ready(pair: Pair) -> tuple[Router, Router]:
    """The primary leads, and the standby follows."""
    primary = pair.start("primary")
    eventually(primary.ready, "the primary's readiness")
    eventually(lambda: all_live(primary), "the engines' life")
    standby = pair.start("standby")
    eventually(lambda: follows(standby), "the standby's following")
    return primary, standby


def test_a_router_whose_state_is_elsewhere_than_the_other_s_does_not_start(tmp_path: Path) -> None:
    with pair_of(tmp_path, "{backend: file}") as pair:
        primary = pair.start("primary")
        eventually(primary.ready, "the primary's readiness")
        argv = [sys.executable, "-m", "narwhal.cli.serve", "--fleet", str(pair.fleet), "--standby"]
        argv += ["--state-dir", str(tmp_path / "elsewhere")]
        found = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
        assert found.returncode == 4
        assert "both would lead. Give both the same --state-dir" in found.stderr
        assert primary.ready()


def test_where_no_role_map_can_be_read_nobody_leads_and_it_is_said(tmp_path: Path) -> None:
    with pair_of(tmp_path, "{backend: file}", engines=2) as pair:
        kept = tmp_path / "state/lease.json"
        kept.parent.mkdir()
        kept.write_text("{broken")
        primary = pair.start("primary")
        eventually(lambda: "is no role map" in primary.log.read_text(), "the lease's trouble")
        assert "knows of no other that serves" in complete(primary)[2]["error"]["message"]
        status, _, body = primary.send("POST", "/narwhal/hold", {}, admin=True)
        said = json.loads(body)["reason"]
        assert status == 503
        assert said.startswith(f"this router stands by: nobody leads: {kept} is no role map")
        assert said.endswith("move it away to begin with an empty map")
        kept.rename(tmp_path / "away")
        eventually(primary.ready, "the primary's readiness")
        assert complete(primary)[0] == 200
        alone = narwhal("handover", "--router", f"unix:{primary.admin_socket}", home=tmp_path)["errors"][0]
        assert alone["message"].startswith("no router follows this one")
        assert "narwhal-serve --standby" in alone["hint"]
        primary.process.kill()
        primary.process.wait(30)
        kept.write_text("{broken")
        again = pair.start("primary")
        eventually(again.ready, "the readiness from the map before")
        assert f"gone on from, {kept}.1" in again.log.read_text()


def test_a_killed_primary_is_followed_by_a_standby_that_knows_what_it_knew(tmp_path: Path) -> None:
    with pair_of(tmp_path, "{backend: file}") as pair:
        primary, standby = both_ready(pair)
        status, headers, body = complete(standby)
        assert (status, headers["retry-after"], body["error"]["code"]) == (503, "1", "standby")
        assert json.loads(standby.send("GET", "/ready")[2]) == {
            "ready": False,
            "state": "unready",
            "reason": "standby",
        }
        for path in ("/narwhal/hold", "/narwhal/unhold"):
            assert standby.send("POST", path, {}, admin=True)[0] == 503

        for _ in range(40):
            assert complete(primary)[0] == 200
        move = {"engine": "local/0", "role": "decode"}
        assert primary.send("POST", "/narwhal/move", move, admin=True)[0] == 200
        eventually(lambda: roles(primary)["local/0"] == "decode", "the move")
        assert primary.send("POST", "/narwhal/hold", {"reason": "tonight"}, admin=True)[0] == 200
        drain = {"engines": ["local/3"], "stay": True}
        assert primary.send("POST", "/narwhal/drain", drain, admin=True)[0] == 200
        assert primary.send("POST", "/narwhal/pin", {"engine": "local/1", "role": "prefill"}, admin=True)[0] == 200
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
        assert {e["id"]: (e["pin"], e["state"] in ("draining", "drained")) for e in after["engines"]} == {
            "local/0": (None, False),
            "local/1": ("prefill", False),
            "local/2": (None, False),
            "local/3": (None, True),
        }
        assert after["engines"][3]["drain"]["stays"]
        assert {e["id"]: e["generation"] for e in after["engines"]} == {
            e["id"]: e["generation"] for e in before["engines"]
        }
        assert standby.send("POST", "/narwhal/unhold", {}, admin=True)[0] == 200

        again = pair.start("primary")
        eventually(lambda: follows(again), "the former one's following")
        assert complete(again)[0] == 503
        assert complete(standby)[0] == 200
        standby.process.terminate()
        standby.process.wait(60)
        replayed = narwhal("simulate", "--replay", str(tmp_path / "state/journal-standby"), home=tmp_path)["data"]
        assert replayed["different"] == 0, replayed
        assert replayed["events"] > 0


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    folder = tmp_path / "etcd"
    folder.mkdir()
    member = Etcd(folder)
    yield member
    member.stop()


def etcd_lease(etcd: Etcd) -> str:
    return f'{{backend: etcd, endpoints: ["{etcd.url}"], ttl_s: 2}}'


def leases(*routers: Router) -> list[str]:
    return [router.state()["lease"]["standing"] for router in routers]


def test_a_dead_primarys_lease_can_be_revoked(tmp_path: Path, etcd: Etcd) -> None:
    lease = etcd_lease(etcd).replace("ttl_s: 2", "ttl_s: 600")
    with pair_of(tmp_path, lease) as pair:
        primary, standby = both_ready(pair)
        note = primary.state_dir / "lease-id"
        assert note.stat().st_mode & 0o777 == 0o600
        primary.process.kill()
        primary.process.wait()
        argv = [sys.executable, "-m", "narwhal.cli.serve", "--fleet", str(pair.fleet)]
        argv += ["--state-dir", str(primary.state_dir), "--revoke"]
        assert subprocess.run(argv, check=False).returncode == 0
        assert not note.exists()
        eventually(standby.ready, "the standby's readiness")
        assert subprocess.run(argv, check=False).returncode == 0  # nothing is left to revoke


class TwoAddresses:
    """A client that asks the other router when one does not serve it; it counts what neither served."""

    def __init__(self, routers: list[Router]) -> None:
        self.routers = routers
        self.served: list[int] = []
        self.failed: list[list[object]] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._done.is_set():
            said: list[object] = []
            for router in self.routers:
                try:
                    status = complete(router)[0]
                except OSError as error:
                    said.append(error)
                    continue
                if status == 200:
                    self.served.append(router.port)
                    break
                said.append(status)
            else:
                self.failed.append(said)

    def stop(self) -> None:
        self._done.set()
        self._thread.join()


@pytest.mark.parametrize(("how", "workers"), [("SIGTERM", 1), ("verb", 1), ("verb", 2)])
def test_a_planned_handover_fails_no_request(tmp_path: Path, how: str, workers: int) -> None:
    with pair_of(tmp_path, "{backend: file}", workers=workers) as pair:
        primary, standby = both_ready(pair)
        client = TwoAddresses([primary, standby])
        eventually(lambda: len(client.served) >= 10, "some requests")
        if how == "SIGTERM":
            primary.process.send_signal(signal.SIGTERM)
            assert primary.process.wait(60) == 0
        else:
            said = narwhal("handover", "--router", f"unix:{primary.admin_socket}", home=tmp_path)
            assert (said["exit_code"], said["data"]) == (0, {"leader": "local"})
            assert leases(primary, standby) == ["deposed", "leader"]
            seen = narwhal("status", "--fleet", str(pair.fleet), home=tmp_path)  # of the two, the one that leads
            assert seen["data"]["lease"]["standing"] == "leader"
            held = narwhal("hold", "--reason", "night", "--fleet", str(pair.fleet), home=tmp_path)
            assert held["exit_code"] == 0
            assert standby.state()["hold"]["on"]
        eventually(lambda: client.served[-10:] == [standby.port] * 10, "requests of the standby's alone")
        client.stop()
        assert client.failed == []
        for name, router in pair.routers.items():
            assert "Traceback" not in router.log.read_text(), name


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_on_a_socket_that_both_are_given_no_connection_is_refused(tmp_path: Path, how: signal.Signals) -> None:
    with pair_of(tmp_path, "{backend: file}", given=True) as pair:
        primary, standby = both_ready(pair)
        assert complete(primary)[0] == 200
        primary.process.send_signal(how)
        primary.process.wait(60)
        # whoever connects now waits in the socket's queue until the standby accepts
        assert complete(standby)[0] == 200
        assert standby.ready()
        again = pair.start("primary")
        eventually(lambda: follows(again), "the former one's following")
        for _ in range(5):  # it does not accept on the socket while it stands by
            assert complete(standby)[0] == 200
