"""The admin listener: what it answers, who may ask, and that clients cannot."""

import json
import socket
from pathlib import Path

import pytest

from narwhal.documents import problems
from narwhal.router.operating import BODIES
from tests.router.harness import FakeEngine, Router, read_all, routing


def orders_in_force(router: Router) -> object:
    state = router.state()
    engines = [[e[name] for name in ("id", "role", "pin", "state", "drain")] for e in state["engines"]]
    return state["epoch"], state["hold"], engines


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics", "/narwhal/state", "/narwhal/moves"])
def test_pages(router: Router, path: str) -> None:
    status, headers, body = router.send("GET", path, admin=True)
    assert status == 200
    assert body
    assert headers["content-type"].startswith("text/plain" if path == "/metrics" else "application/json")
    status, headers, _ = router.send("POST", path, {}, admin=True)
    assert (status, headers["allow"]) == (405, "GET")


@pytest.mark.parametrize("path", ["/narwhal/state", "/narwhal/hold", "/narwhal/move", "/metrics"])
def test_the_client_listener_knows_nothing_of_it(router: Router, path: str) -> None:
    assert router.send("GET", path)[0] == 404
    assert router.send("POST", path, {})[0] == 404


def test_a_reason_cannot_write_to_other_terminals(router: Router) -> None:
    sent = "a\x1b[31mb\nc" + "d" * 500
    assert router.send("POST", "/narwhal/hold", {"reason": sent}, admin=True)[0] == 200
    try:
        shown = router.state()["hold"]["reason"]
        assert shown.isprintable()
        assert shown.startswith("a [31mb cd")
        assert len(shown) == 200
    finally:
        router.send("POST", "/narwhal/unhold", {}, admin=True)


def test_a_hold_is_set_shown_and_ended(router: Router) -> None:
    assert router.send("POST", "/narwhal/hold", {"reason": "maintenance"}, admin=True)[0] == 200
    try:
        assert router.state()["hold"] == {"on": True, "reason": "maintenance"}
        status, _, body = router.send("POST", "/narwhal/swap", {"a": "local/0", "b": "local/1"}, admin=True)
        assert status == 409
        answer = json.loads(body)
        assert (answer["kind"], answer["order"], answer["done"]) == ("OrderAnswer", "swap", False)
        assert answer["error"]["message"] == answer["reason"] == answer["decision"]["reason"]
        decision = answer["decision"]
        assert decision["outcome"] == "held"
        assert [guard["name"] for guard in decision["guards"] if not guard["passed"]] == ["hold"]
    finally:
        assert router.send("POST", "/narwhal/unhold", {}, admin=True)[0] == 200
    assert router.state()["hold"]["on"] is False


def test_a_swap_is_done_and_new_requests_follow_it(router: Router, prefill: FakeEngine, decode: FakeEngine) -> None:
    """Fresh engines for this test alone would be slower; the roles are exchanged and exchanged back."""
    before = {engine["id"]: engine["role"] for engine in router.state()["engines"]}
    for _ in range(2):
        status, _, body = router.send("POST", "/narwhal/swap", {"a": "local/0", "b": "local/1"}, admin=True)
        assert (status, json.loads(body)["decision"]["outcome"]) == (200, "moved"), body
        roles = {engine["id"]: engine["role"] for engine in router.state()["engines"]}
        first = prefill if roles["local/0"] == "prefill" else decode
        first.asked.clear()
        assert router.send("POST", "/v1/completions", {"model": "m", "prompt": "a"})[0] == 200
        assert [asked.leg for asked in first.generations] == [1]
    assert roles == before
    assert router.state()["epoch"] >= 4


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/narwhal/hold", {"reason": "a", "more": 1}, 400),
        ("/narwhal/hold", {"reason": 1}, 400),
        ("/narwhal/unhold", {"reason": "a"}, 400),
        ("/narwhal/move", {"engine": "local/0"}, 400),
        ("/narwhal/move", {"engine": "local/0", "role": "both"}, 400),
        ("/narwhal/move", {"engine": "local/9", "role": "decode"}, 404),
        ("/narwhal/swap", {"a": "local/0", "b": "nobody"}, 404),
        ("/narwhal/swap", [], 400),
        ("/narwhal/drain", {"engines": []}, 400),
        ("/narwhal/drain", {"engines": ["local/0"], "deadline": 5}, 400),
        ("/narwhal/drain", {"engines": ["local/0"], "deadline_s": -1}, 400),
        ("/narwhal/drain", {"engines": ["local/0", "nowhere"]}, 404),
        ("/narwhal/drain", {"engines": ["local/0"]}, 409),
        ("/narwhal/drain", {"engines": ["local"]}, 409),
        ("/narwhal/readmit", {"engines": ["loc"]}, 404),
        ("/narwhal/readmit", {}, 400),
        ("/narwhal/pin", {"engine": "local/0", "role": "both"}, 400),
        ("/narwhal/pin", {"engine": "local/0", "role": "decode"}, 409),
        ("/narwhal/nothing", {}, 404),
    ],
)
def test_what_is_not_understood_changes_nothing_and_is_explained(
    router: Router, path: str, body: object, status: int
) -> None:
    before = orders_in_force(router)
    answered, _, text = router.send("POST", path, body, admin=True)
    assert answered == status
    answer = json.loads(text)
    assert answer["error"]["message"]
    if path in BODIES:
        assert problems(answer, "order-answer") == []
        assert answer["done"] is False
    assert orders_in_force(router) == before


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil.example"]
)
def test_a_page_that_rebinds_its_name_to_loopback_gets_nothing(router: Router, host: str) -> None:
    status, _, body = router.send("GET", "/narwhal/state", headers={"host": host}, admin=True)
    assert status == 403
    assert b"engines" not in body


def test_nor_does_a_page_that_posts_across_origins(router: Router) -> None:
    sent = {"origin": "https://evil.example", "content-type": "text/plain"}
    assert router.send("POST", "/narwhal/hold", {"reason": "x"}, sent, admin=True)[0] == 403
    assert router.state()["hold"]["on"] is False


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:1", "[::1]", "[::1]:1"])
def test_loopback_by_any_name_is_let_in(router: Router, host: str) -> None:
    assert router.send("GET", "/narwhal/state", headers={"host": host}, admin=True)[0] == 200


def test_ready_says_why_not(tmp_path: Path) -> None:
    engines = [FakeEngine(), FakeEngine()]
    for engine in engines:
        engine.healthy = False
    with routing(tmp_path, engines, wait=False) as router:
        router.wait_listening()
        for admin in (False, True):
            status, _, body = router.send("GET", "/ready", admin=admin)
            assert (status, json.loads(body)) == (
                503,
                {"ready": False, "state": "unready", "reason": "no engine is live"},
            )
            assert router.send("GET", "/health", admin=admin)[0] == 200
    for engine in engines:
        engine.close()


def test_smuggled_bytes_are_refused_here_too(router: Router) -> None:
    with socket.create_connection(("127.0.0.1", router.admin_port), timeout=60) as sock:
        sock.sendall(
            b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        assert read_all(sock).startswith(b"HTTP/1.1 400")
