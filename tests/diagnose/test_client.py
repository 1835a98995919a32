import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from narwhal.cli.verbs import run_app
from narwhal.dev.template import FleetPlan, fleet_yaml
from narwhal.diagnose import AddressError, AdminClient, NoRouterError, RefusedError, UnreachableError, find_router

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
    answers["/narwhal/moves"] = (200, b'{"kind": "Moves", "moves": [{"id": 1}]}')
    client = AdminClient(url, token="secret")
    client.state()
    assert client.moves() == [{"id": 1}]
    client.decisions(held=True)
    client.hold("noon")
    client.unhold()
    client.move("local/0", "decode")
    client.swap("local/0", "local/1")
    assert [(method, path, body) for method, path, _, body in asked] == [
        ("GET", "/narwhal/state", None),
        ("GET", "/narwhal/moves", None),
        ("GET", "/narwhal/decisions?held=1", None),
        ("POST", "/narwhal/hold", {"reason": "noon"}),
        ("POST", "/narwhal/unhold", {}),
        ("POST", "/narwhal/move", {"engine": "local/0", "role": "decode"}),
        ("POST", "/narwhal/swap", {"a": "local/0", "b": "local/1"}),
    ]
    assert {token for _, _, token, _ in asked} == {"Bearer secret"}


def test_a_refusal_carries_the_router_s_words(router: Router) -> None:
    url, _, answers = router
    answers["/narwhal/move"] = (409, b'{"error": {"message": "local/0 is pinned to prefill"}}')
    with pytest.raises(RefusedError, match="pinned") as refusal:
        AdminClient(url).move("local/0", "decode")
    assert refusal.value.status == 409


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
    answers["/narwhal/move"] = (409, json.dumps(decision).encode())
    answers["/narwhal/state"] = (200, b'{"hold": {"on": true, "reason": "noon"}}')
    assert run_app(["move", "local/0", "decode", "--router", url, "--format", "json"]) == 4
    answer = json.loads(capsys.readouterr().out)
    assert answer["errors"][0]["message"] == "nothing was moved: moves are on hold: noon"
    assert answer["data"] == decision
