"""The tunnel: the command that carries it, a router of this machine, and what gate G asks through it."""

import json
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from narwhal.cli import tunnel as _tunnel
from narwhal.cli.app import run_app
from narwhal.deploy.errors import DeployError
from narwhal.deploy.opening import Opened, open_run
from narwhal.deploy.serving import check_serving, declared_load
from narwhal.deploy.tunnel import TunnelWish, open_tunnel
from tests.deploy.conftest import FLEET

VERBS = (_tunnel,)
pytestmark = pytest.mark.e2e
FAKE_SSH = """#!{python}
import json, os, socket, sys, threading
argv = sys.argv[1:]
open(os.environ["SSH_LOG"], "a").write(json.dumps(argv) + "\\n")
if os.environ.get("SSH_SAYS"):
    sys.exit(os.environ["SSH_SAYS"])
def carry(listener, place):
    while True:
        near = listener.accept()[0]
        far = socket.create_connection(place)
        for a, b in ((near, far), (far, near)):
            threading.Thread(target=pump, args=(a, b), daemon=True).start()
def pump(a, b):
    while data := a.recv(65536):
        b.sendall(data)
    b.shutdown(socket.SHUT_WR)
threads = []
for at, option in enumerate(argv):
    if option == "-L":
        host, port, rest = argv[at + 1].split(":", 2)
        place, _, to = rest.rpartition(":")
        listener = socket.create_server((host, int(port)))
        threads.append(threading.Thread(target=carry, args=(listener, (place.strip("[]"), int(to)))))
for thread in threads:
    thread.start()
"""


class Router(BaseHTTPRequestHandler):
    """A router that answers as it is told."""

    completion: tuple[int, dict[str, Any]] = (200, {"usage": {"completion_tokens": 4}})

    def do_GET(self) -> None:
        body = {"/ready": b'{"ready": true}', "/metrics": b"# TYPE narwhal_requests_total counter\n"}[self.path]
        self._answer(200, body)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        status, body = self.completion
        self._answer(status, json.dumps(body).encode())

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def router() -> Any:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Router)
    Thread(target=server.serve_forever).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def ssh_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An `ssh` that forwards on this machine and writes down how it was called."""
    import sys

    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(FAKE_SSH.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    log = tmp_path / "ssh.jsonl"
    monkeypatch.setenv("SSH_LOG", str(log))
    return log


def opened_at(tmp_path: Path, port: int, more: str = "") -> Opened:
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET.replace("primary: edge", f"primary: edge, port: {port}, admin: {{port: {port}}}{more}"))
    return open_run(file)


@pytest.fixture
def opened(tmp_path: Path, router: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch) -> Opened:
    """A fleet whose router is that one. Its two listeners are one port, which the rules would not have."""
    monkeypatch.setattr("narwhal.deploy.opening.check_source", _unchecked)
    return opened_at(tmp_path, router.server_port)


def _unchecked(source: Any) -> Any:
    from types import SimpleNamespace

    from narwhal.fleet.model import Fleet

    return SimpleNamespace(fleet=Fleet.model_validate(source.data), findings=())


def test_it_leads_to_both_listeners_with_the_pinned_key(opened: Opened, ssh_log: Path) -> None:
    with open_tunnel(opened, TunnelWish()) as way:
        assert way.url != way.admin_url
        assert not way.ended()
    assert way.ended()
    (argv,) = map(json.loads, ssh_log.read_text().splitlines())
    assert argv[-1] == "ops@10.0.0.9"
    assert {"StrictHostKeyChecking=yes", "BatchMode=yes", "ExitOnForwardFailure=yes"} <= set(argv)


def test_what_ssh_says_is_told(opened: Opened, ssh_log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_SAYS", "Host key verification failed.")
    with pytest.raises(DeployError, match="edge: Host key verification failed"), open_tunnel(opened, TunnelWish()):
        pass
    assert ssh_log.exists()


def test_gate_g_asks_for_readiness_metrics_and_a_completion(opened: Opened, ssh_log: Path) -> None:
    seen, failure = check_serving(opened, "sh -c 'test -n \"$OPENAI_BASE_URL\" && echo served'", lambda _: None)
    assert failure is None
    assert seen["completion"] == {"tokens": 4}
    assert (seen["metrics"], seen["load"]["output"]) == (1, "served\n")
    assert ssh_log.exists()


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (503, {"error": "no engine"}, "a completion is answered 503"),
        (200, {"usage": {}}, "a completion is answered 200"),
    ],
)
def test_a_router_that_does_not_serve_fails_the_gate(
    status: int, body: dict[str, Any], said: str, opened: Opened, ssh_log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Router, "completion", (status, body))
    _, failure = check_serving(opened, None, lambda _: None)
    assert failure is not None
    assert said in failure.message
    assert failure.host == "edge"
    assert ssh_log.exists()


def test_points_that_the_fleet_declares_are_the_load(opened: Opened, tmp_path: Path) -> None:
    assert declared_load(opened) is None
    points = "{points: [{name: p, traffic: {kind: mix, mix: 'steady:code', rate_rps: 2}}]}"
    file = tmp_path / "fleet.yaml"
    file.write_text(file.read_text() + f"benchmark: {points}\n")
    command = declared_load(open_run(file))
    assert command is not None
    assert f"narwhal bench {file} --out {tmp_path}" in command


def test_a_load_that_fails_fails_the_gate(opened: Opened, ssh_log: Path) -> None:
    seen, failure = check_serving(opened, "sh -c 'echo too slow >&2; exit 3'", lambda _: None)
    assert failure is not None
    assert "exit code 3: too slow" in failure.message
    assert seen["load"]["exit_code"] == 3
    assert ssh_log.exists()


def test_a_command_runs_through_it_and_its_exit_code_decides(
    opened: Opened, ssh_log: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    argv = ["tunnel", str(opened.file), "--", "sh", "-c", "echo at $NARWHAL_ROUTER; exit $CODE"]
    os.environ["CODE"] = "0"
    assert run_app(argv) == 0
    assert "at http://127.0.0.1:" in capfd.readouterr().out
    os.environ["CODE"] = "7"
    assert run_app(argv) == 4
    assert run_app(["tunnel", str(opened.file), "--standby"]) == 2
    del os.environ["CODE"]
    assert ssh_log.exists()
