"""Two routers that share no host: they know each other by address, and the standby follows over TLS."""

import http.client
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from narwhal.fleet.unix import UnixConnection
from tests.router.certificates import Pair, authority, issue
from tests.router.harness import PATIENCE_S, FakeEngine, eventually, write_fleet
from tests.router.lease.conftest import Etcd

pytestmark = pytest.mark.e2e
ADDRESSES = {"primary": "127.1", "standby": "127.2"}
"""Written so, they are loopback for the resolver alone: a fleet of several hosts must not name one."""
NAMES = "subjectAltName=DNS:127.1,DNS:127.2"


@dataclass
class Host:
    """One of the two: its address, its own state directory, its router."""

    name: str
    fleet: Path
    folder: Path
    port: int
    admin_port: int
    process: "subprocess.Popen[bytes] | None" = field(default=None)

    def start(self) -> None:
        self.folder.mkdir(exist_ok=True)
        argv = [sys.executable, "-m", "narwhal.cli.serve", "--fleet", str(self.fleet), "--state-dir", str(self.folder)]
        with self.log.open("ab") as log:
            more = ["--standby"] if self.name == "standby" else []
            self.process = subprocess.Popen([*argv, *more], stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    @property
    def log(self) -> Path:
        return self.folder / "router.log"

    def lines(self) -> int:
        """Lines of the follow stream that it has read."""
        with closing(UnixConnection(self.socket, PATIENCE_S)) as connection:
            connection.request("GET", "/metrics")
            page = connection.getresponse().read().decode()
        line = next(line for line in page.splitlines() if line.startswith("narwhal_follow_lines_total"))
        return round(float(line.split()[1]))

    @property
    def socket(self) -> Path:
        return self.folder / f"admin-{self.admin_port}.sock"

    def operate(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Ask the Unix socket of this host."""
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()
        with closing(UnixConnection(self.socket, PATIENCE_S)) as connection:
            connection.request(method, path, json.dumps(body) if body is not None else None)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

    def lease(self) -> Any:
        try:
            return self.operate("GET", "/narwhal/state")[1]["lease"]
        except OSError:
            return {"standing": "", "lag_s": None, "follow_trouble": "", "followers": 0}

    def complete(self) -> int:
        connection = http.client.HTTPConnection(ADDRESSES[self.name], self.port, timeout=PATIENCE_S)
        with closing(connection):
            body = json.dumps({"prompt": "x", "max_tokens": 3})
            connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
            return connection.getresponse().status

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(60)


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    (tmp_path / "etcd").mkdir()
    member = Etcd(tmp_path / "etcd")
    yield member
    member.stop()


@pytest.fixture
def engines() -> Iterator[list[FakeEngine]]:
    fakes = [FakeEngine() for _ in range(4)]
    yield fakes
    for fake in fakes:
        fake.close()


@pytest.fixture
def hosts(tmp_path: Path, etcd: Etcd, engines: list[FakeEngine]) -> Iterator[dict[str, Host]]:
    """Both with one fleet file, none started."""
    ca = authority(tmp_path)
    served = issue(ca, Pair(tmp_path / "admin.pem", tmp_path / "admin.key"), names=NAMES)
    served.cert.write_text(served.cert.read_text() + ca.cert.read_text())  # the chain, its authority included
    token = tmp_path / "token"
    token.write_text("a token of the standby")
    token.chmod(0o600)
    tokens = f"[{{name: peer, scope: replicate, token: {{file: {token}}}}}]"
    admin = f", bind: fabric, tls: {served.yaml}, tokens: {tokens}"
    fleet, port, admin_port = write_fleet(tmp_path, [engine.port for engine in engines], admin=admin)
    text = fleet.read_text().replace(
        "hosts: [{name: local}]",
        'hosts:\n  - {name: local, fabric: {address: "127.1"}}\n'
        '  - {name: away, engines: 0, ssh: {address: "127.2", user: ops}, fabric: {address: "127.2"}}',
    )
    text = text.replace("http://127.0.0.1:", "http://127.1:")
    text = text.replace("  primary: local\n", "  primary: local\n  standby: away\n  bind: fabric\n")
    fleet.write_text(f'{text}lease: {{backend: etcd, endpoints: ["{etcd.url}"], ttl_s: 2}}\n')
    both = {name: Host(name, fleet, tmp_path / name, port, admin_port) for name in ADDRESSES}
    yield both
    for host in both.values():
        host.kill()


def test_a_standby_elsewhere_follows_over_tls_and_takes_over(hosts: dict[str, Host]) -> None:
    primary, standby = hosts["primary"], hosts["standby"]
    primary.start()
    eventually(lambda: primary.lease()["standing"] == "leader", "the primary's lease")
    eventually(lambda: primary.complete() == 200, "an answer")
    standby.start()
    eventually(lambda: standby.lease()["lag_s"] is not None, "the standby's following")
    assert standby.lease()["follow_trouble"] == ""
    assert primary.lease()["followers"] == 1
    assert standby.complete() == 503
    for _ in range(20):
        assert primary.complete() == 200
    move = {"engine": "local/0", "role": "decode"}
    assert primary.operate("POST", "/narwhal/move", move)[0] == 200
    lines = standby.lines()
    eventually(lambda: standby.lines() >= lines + 2, "a line that was made after all that")

    primary.kill()
    eventually(lambda: standby.lease()["standing"] == "leader", "the standby's lease")
    assert standby.complete() == 200
    state = standby.operate("GET", "/narwhal/state")[1]
    assert {e["id"]: e["role"] for e in state["engines"]}["local/0"] == "decode"
    assert "it goes on from what the other router knew" in standby.log.read_text()

    primary.start()  # it follows in turn, and takes the lead back as planned
    eventually(lambda: primary.lease()["lag_s"] is not None, "the former one's following")
    assert primary.complete() == 503
    status, said = standby.operate("POST", "/narwhal/handover", {})
    assert (status, said["leader"]) == (200, "local")
    eventually(lambda: primary.complete() == 200, "the primary's answer")


def test_a_token_that_is_none_of_the_leaders_keeps_the_standby_waiting(hosts: dict[str, Host], tmp_path: Path) -> None:
    primary, standby = hosts["primary"], hosts["standby"]
    primary.start()
    eventually(lambda: primary.lease()["standing"] == "leader", "the primary's lease")
    (tmp_path / "token").write_text("another token altogether")
    standby.start()
    eventually(lambda: "it answers 401" in standby.lease()["follow_trouble"], "the reason why it does not follow")
    assert primary.lease()["followers"] == 0
