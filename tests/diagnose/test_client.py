import http.server
import json
import socket
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from narwhal.cli.verbs import run_app
from narwhal.dev.template import FleetPlan, fleet_yaml
from narwhal.diagnose import (
    AddressError,
    AdminClient,
    NoRouterError,
    NoTokenError,
    RefusedError,
    UnreachableError,
    find_router,
)

Asked = list[tuple[str, str, str, Any]]


@pytest.fixture
def router() -> Iterator[tuple[str, Asked, dict[str, tuple[int, bytes]]]]:
    """A server that answers by a table and writes down what it was asked."""
    asked: Asked = []
    answers: dict[str, tuple[int, bytes]] = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            body = json.loads(self.rfile.read(length)) if length else None
            asked.append((self.command, self.path, self.headers.get("Authorization", ""), body))
            status, raw = answers.get(self.path, (200, b"{}"))
            self.send_response(status)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        do_GET = do_POST = answer  # noqa: N815

        def log_message(self, *args: Any) -> None:
            """Be quiet."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", asked, answers
    server.shutdown()
    server.server_close()


Router = tuple[str, Asked, dict[str, tuple[int, bytes]]]


def test_each_verb_asks_its_route(router: Router) -> None:
    url, asked, answers = router
    answers["/narwhal/moves"] = (200, b'{"kind": "Moves", "now_t": 9.5, "moves": [{"id": 1}]}')
    client = AdminClient(url, token="secret")
    client.state()
    assert client.moves() == {"kind": "Moves", "now_t": 9.5, "moves": [{"id": 1}]}
    client.decisions(held=True)
    client.hold("noon")
    client.unhold()
    client.move("local/0", "decode")
    client.swap("local/0", "local/1")
    client.drain(["local/0"], deadline_s=5.0)
    client.readmit(["local"])
    client.pin("local/0", "none")
    assert [(method, path, body) for method, path, _, body in asked] == [
        ("GET", "/narwhal/state", None),
        ("GET", "/narwhal/moves", None),
        ("GET", "/narwhal/decisions?held=1", None),
        ("POST", "/narwhal/hold", {"reason": "noon"}),
        ("POST", "/narwhal/unhold", {}),
        ("POST", "/narwhal/move", {"engine": "local/0", "role": "decode"}),
        ("POST", "/narwhal/swap", {"a": "local/0", "b": "local/1"}),
        (
            "POST",
            "/narwhal/drain",
            {"engines": ["local/0"], "deadline_s": 5.0, "stay": False, "cancel": False, "move": False},
        ),
        ("POST", "/narwhal/readmit", {"engines": ["local"]}),
        ("POST", "/narwhal/pin", {"engine": "local/0", "role": "none"}),
    ]
    assert {token for _, _, token, _ in asked} == {"Bearer secret"}


def test_a_refusal_carries_the_router_s_words(router: Router) -> None:
    url, _, answers = router
    answers["/narwhal/move"] = (409, b'{"error": {"message": "local/0 is pinned to prefill"}}')
    with pytest.raises(RefusedError, match="pinned") as refusal:
        AdminClient(url).move("local/0", "decode")
    assert refusal.value.status == 409


def test_an_order_whose_answer_is_lost_is_given_again_under_the_same_key() -> None:
    keys: list[str | None] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            keys.append(self.headers.get("Idempotency-Key"))
            self.rfile.read(int(self.headers["Content-Length"]))
            if len(keys) < 3:
                return  # the connection closes without an answer
            self.send_response(200)
            self.send_header("Content-Length", "14")
            self.end_headers()
            self.wfile.write(b'{"done": true}')

        def log_message(self, *args: Any) -> None:
            """Be quiet."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    client = AdminClient(f"http://127.0.0.1:{server.server_port}")
    assert client.readmit(["local/0"]) == {"done": True}
    client.readmit(["local/0"])
    server.shutdown()
    server.server_close()
    assert len(keys) == 4
    assert len(set(keys[:3])) == 1
    assert keys[0]
    assert keys[3] not in (keys[0], None)
    with pytest.raises(UnreachableError, match="refused"):  # nobody can have got it
        client.readmit(["local/0"])


def test_what_is_no_router_is_said_to_be_none(router: Router) -> None:
    url, _, answers = router
    answers["/narwhal/state"] = (200, b"<html>")
    with pytest.raises(UnreachableError, match="not a narwhal router"):
        AdminClient(url).state()
    for url in ("ftp://192.0.2.1", "http://192.0.2.1:port", "http://192.0.2.1:99999", "http://"):
        with pytest.raises(AddressError, match="no router URL"):
            AdminClient(url)


def test_which_router_is_meant(tmp_path: Path) -> None:
    """The rule, in order: a URL, a fleet file, the environment, the dev instance."""
    fleet, dev = tmp_path / "fleet.yaml", tmp_path / "dev.yaml"
    fleet.write_text(fleet_yaml(FleetPlan("a", 2, 1)).replace("admin: {port:", "admin: {port: 4401} #"))
    dev.write_text(fleet_yaml(FleetPlan("b", 2, 1)).replace("admin: {port:", "admin: {port: 4402} #"))
    environ = {"NARWHAL_ROUTER": "http://127.0.0.1:4403"}
    url = "http://127.0.0.1:4400"

    def found(**given: Any) -> str:
        return find_router(**{"router": None, "fleet": None, "environ": {}, "dev_fleet": None} | given).url

    assert found(router=url, fleet=fleet, environ=environ, dev_fleet=dev) == url
    assert found(fleet=fleet, environ=environ, dev_fleet=dev) == "http://127.0.0.1:4401"
    assert found(environ=environ, dev_fleet=dev) == "http://127.0.0.1:4403"
    assert found(dev_fleet=dev) == "http://127.0.0.1:4402"
    with pytest.raises(NoRouterError, match="--router URL"):
        found()


def test_a_refused_move_is_told_in_words(router: Router, capsys: pytest.CaptureFixture[str]) -> None:
    url, _, answers = router
    hold = {"name": "hold", "passed": False, "value": 1.0, "limit": 0.0, "engine": ""}
    reason = "move local/0 to decode; held by hold: 1 against 0"
    decision = {"outcome": "held", "reason": reason, "trigger": "operator", "moves": [], "guards": [hold]}
    answers["/narwhal/move"] = (409, json.dumps({"done": False, "decision": decision}).encode())
    answers["/narwhal/state"] = (200, b'{"hold": {"on": true, "reason": "noon"}}')
    assert run_app(["move", "local/0", "decode", "--router", url, "--format", "json"]) == 4
    answer = json.loads(capsys.readouterr().out)
    assert answer["errors"][0]["message"] == "nothing was moved: moves are on hold: noon"
    assert answer["data"] == decision


@pytest.fixture
def unix_router(tmp_path: Path) -> Iterator[tuple[Path, Asked]]:
    """A fleet file with a state directory beside it, and something that answers on the admin socket there."""
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(fleet_yaml(FleetPlan("a", 2, 1)).replace("admin: {port:", "admin: {port: 4401} #"))
    (tmp_path / "state").mkdir()
    asked: Asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append((self.command, self.path, self.headers.get("Authorization", ""), body))
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def address_string(self) -> str:
            return "unix"

        def log_message(self, *args: Any) -> None:
            """Be quiet."""

    server = socketserver.ThreadingUnixStreamServer(str(tmp_path / "state" / "admin-4401.sock"), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield fleet, asked
    server.shutdown()
    server.server_close()


def found_for(fleet: Path, environ: dict[str, str] | None = None, token_file: Path | None = None) -> AdminClient:
    nowhere = {"HOME": "/nowhere"}
    return find_router(
        router=None, fleet=fleet, environ=nowhere | (environ or {}), dev_fleet=None, token_file=token_file
    )


def test_on_the_router_s_host_the_unix_socket_comes_first_and_gets_no_token(unix_router: tuple[Path, Asked]) -> None:
    fleet, asked = unix_router
    socket_path = fleet.parent / "state" / "admin-4401.sock"
    client = found_for(fleet, {"NARWHAL_ADMIN_TOKEN": "secret"})
    assert client.url == f"unix:{socket_path}"
    client.hold("noon")
    AdminClient(f"unix://{socket_path}").unhold()
    assert asked == [("POST", "/narwhal/hold", "", {"reason": "noon"}), ("POST", "/narwhal/unhold", "", {})]


def test_the_socket_may_be_a_unit_s_or_where_the_fleet_file_says(
    unix_router: tuple[Path, Asked], tmp_path: Path
) -> None:
    fleet, _ = unix_router
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    moved = elsewhere / "fleet.yaml"
    moved.write_text(fleet.read_text())
    socket_path = fleet.parent / "state" / "admin-4401.sock"
    assert found_for(moved).url == "http://127.0.0.1:4401"
    assert found_for(moved, {"STATE_DIRECTORY": str(socket_path.parent)}).url == f"unix:{socket_path}"
    moved.write_text(fleet.read_text().replace("{port: 4401}", f"{{port: 4401, socket: {socket_path}}}"))
    assert found_for(moved).url == f"unix:{socket_path}"


def test_a_dead_socket_is_passed_over(unix_router: tuple[Path, Asked], tmp_path: Path) -> None:
    fleet, _ = unix_router
    dead = tmp_path / "dead.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(dead))
    fleet.write_text(fleet.read_text().replace("{port: 4401}", f"{{port: 4401, socket: {dead}}}"))
    assert found_for(fleet).url == "http://127.0.0.1:4401"
    with pytest.raises(UnreachableError, match=f"unix:{dead}: Connection refused"):
        AdminClient(f"unix:{dead}").state()


def test_which_token_is_borne_over_tcp(router: Router, tmp_path: Path) -> None:
    """In order: that of `--token-file`, of the environment, of the fleet file, the one that may do most first."""
    url, asked, _ = router
    port = int(url.rpartition(":")[2])
    given, read = tmp_path / "given", tmp_path / "read"
    for path in (given, read):
        path.write_text(f"the {path.name} one\n")
        path.chmod(0o600)
    listed = f"{{name: r, scope: read, token: {{file: {read}}}}}, {{name: o, scope: operate, token: {{env: OPERATE}}}}"
    fleet = tmp_path / "fleet.yaml"
    text = fleet_yaml(FleetPlan("a", 2, 1))
    fleet.write_text(text.replace("admin: {port:", f"admin: {{port: {port}, tokens: [{listed}]}} #"))
    environment = {"NARWHAL_ADMIN_TOKEN": "the environment's", "OPERATE": "the operate one"}
    found_for(fleet, environment, given).state()
    found_for(fleet, environment).state()
    found_for(fleet, {"OPERATE": "the operate one"}).state()
    found_for(fleet).state()
    assert [token for _, _, token, _ in asked] == [
        "Bearer the given one",
        "Bearer the environment's",
        "Bearer the operate one",
        "Bearer the read one",
    ]
    read.chmod(0o644)
    with pytest.raises(NoTokenError, match="the environment variable OPERATE is not set"):
        found_for(fleet)
    with pytest.raises(NoTokenError, match=f"--token-file: {read} has mode 0644"):
        found_for(fleet, token_file=read)


def test_errors_of_access_name_the_next_step(
    router: Router, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    url, _, answers = router

    def hint(*arguments: str) -> tuple[str, str, str]:
        assert run_app(["unhold", *arguments, "--format", "json"]) != 0
        [error] = json.loads(capsys.readouterr().out)["errors"]
        return error["code"], error["message"], error["hint"]

    for status in (401, 403):
        answers["/narwhal/unhold"] = (status, b'{"error": {"message": "not you"}}')
        code, message, step = hint("--router", url)
        assert (code, message) == ("refused", "not you")
        assert "--token-file FILE" in step
        assert "unix:" in step
    code, message, step = hint("--router", url, "--token-file", str(tmp_path / "none"))
    assert code == "token"
    assert "cannot read" in message
    assert "NARWHAL_ADMIN_TOKEN" in step
