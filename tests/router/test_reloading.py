"""Reloads of a router in front of engines that do what a test says: URLs, pins, limits, tokens."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.router.harness import (
    END,
    PATIENCE_S,
    STREAM_HEAD,
    Asked,
    FakeEngine,
    Router,
    eventually,
    post,
    read_all,
    routing,
    token,
)

BODY: dict[str, Any] = {"model": "m", "prompt": "x", "max_tokens": 2}


@pytest.fixture
def engines() -> Iterator[list[FakeEngine]]:
    started = [FakeEngine() for _ in range(4)]
    yield started
    for engine in started:
        engine.close()


def edit(folder: Path, old: str, new: str) -> None:
    path = folder / "fleet.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def reload(router: Router) -> Any:
    status, _, body = router.send("POST", "/narwhal/reload", {}, admin=True)
    assert status == 200, body
    return json.loads(body)["reload"]


def engine_state(router: Router, name: str) -> str:
    return next((engine["state"] for engine in router.state()["engines"] if engine["id"] == name), "gone")


def test_a_file_that_is_gone_is_to_be_put_back(tmp_path: Path, engines: list[FakeEngine]) -> None:
    with routing(tmp_path, engines) as router:
        (tmp_path / "fleet.yaml").rename(tmp_path / "elsewhere.yaml")
        status, _, body = router.send("POST", "/narwhal/reload", {}, admin=True)
        (error,) = json.loads(body)["reload"]["errors"]
        assert (status, error["code"]) == (409, "missing-file")
        assert error["hint"] == "the router reads the file that it was started with: put it back"


def test_an_engine_at_another_url_ends_its_streams_first(tmp_path: Path, engines: list[FakeEngine]) -> None:
    *fleet, other = engines
    go_on = threading.Event()

    def slow(asked: Asked, sock: socket.socket) -> None:
        sock.sendall(STREAM_HEAD + token(" a"))
        go_on.wait(PATIENCE_S)
        sock.sendall(token(" b") + END)

    with routing(tmp_path, fleet, prefill=1) as router:
        for engine in fleet[1:]:
            engine.leg_2 = slow
        socks = [router.connect() for _ in range(2)]
        for number, sock in enumerate(socks):
            sock.sendall(post({**BODY, "stream": True}, extra="Connection: close\r\n"))
            eventually(lambda n=number: sum(len(e.generations) for e in fleet[1:]) > n, "leg 2")  # type: ignore[misc]
        eventually(lambda: bool(fleet[1].generations), "a stream on the engine")
        edit(tmp_path, f"http://127.0.0.1:{fleet[1].port}", f"http://127.0.0.1:{other.port}")
        assert [change["path"] for change in reload(router)["applied"]] == ["engine local/1 url"]
        assert engine_state(router, "local/1") == "leaving"
        assert not other.asked
        assert reload(router)["applied"] == []
        go_on.set()
        for sock in socks:
            assert b" b" in read_all(sock)
        eventually(lambda: engine_state(router, "local/1") == "live", "its new life")
        assert router.send("POST", "/v1/completions", BODY)[0] == 200
        assert other.generations  # the first of two idle engines
        urls = {engine["id"]: engine["url"] for engine in router.state()["engines"]}
        assert urls["local/1"] == f"http://127.0.0.1:{other.port}"
        text = router.log.read_text()
        assert "http://" not in text[text.index("reload (") :]


def test_a_pin_moves_its_engine_and_one_that_cannot_says_why(tmp_path: Path, engines: list[FakeEngine]) -> None:
    with routing(tmp_path, engines[:3], prefill=1) as router:
        first, second = (f'"http://127.0.0.1:{engine.port}"' for engine in engines[1:3])
        edit(tmp_path, first, first + ", pin: prefill")
        change = reload(router)["applied"][0]
        assert (change["path"], change["old"], change["new"]) == ("engine local/1 pin", None, "prefill")
        assert change["note"].startswith("moved: ")
        roles = {engine["id"]: (engine["role"], engine["pin"]) for engine in router.state()["engines"]}
        assert roles["local/1"] == ("prefill", "prefill")
        assert router.send("POST", "/narwhal/hold", {"reason": "a test"}, admin=True)[0] == 200
        edit(tmp_path, second, second + ", pin: decode")
        assert reload(router)["applied"][0]["note"] == ""
        assert router.state()["hold"] == {"on": True, "reason": "a test"}
        assert router.send("POST", "/v1/completions", BODY)[0] == 200


def test_limits_of_the_door_follow(tmp_path: Path, engines: list[FakeEngine]) -> None:
    with routing(tmp_path, engines[:2]) as router:
        large = {**BODY, "prompt": "x" * 10_000}
        assert router.send("POST", "/v1/completions", large)[0] == 200
        edit(tmp_path, "max_body_bytes: 65536", "max_body_bytes: 4096")
        assert [change["path"] for change in reload(router)["applied"]] == ["serving.max_body_bytes"]
        assert router.send("POST", "/v1/completions", large)[0] == 413
        assert router.send("POST", "/v1/completions", BODY)[0] == 200


def test_admin_tokens_are_read_again(tmp_path: Path, engines: list[FakeEngine]) -> None:
    secret = tmp_path / "token"
    secret.write_text("a-token-of-the-first-day\n")
    secret.chmod(0o600)
    tokens = f", tokens: [{{name: ops, scope: operate, token: {{file: {secret}}}}}]"
    with routing(tmp_path, engines[:2], admin=tokens, token="a-token-of-the-first-day") as router:
        secret.write_text("short")
        status, _, body = router.send("POST", "/narwhal/reload", {}, admin=True)
        assert (status, json.loads(body)["reload"]["errors"][0]["code"]) == (409, "secrets")
        assert router.state()["kind"] == "RouterState"
        secret.write_text("a-token-of-the-next-day\n")
        assert reload(router)["errors"] == []
        statuses: Callable[[str], int] = lambda said: router.send(  # noqa: E731
            "GET", "/narwhal/state", headers={"authorization": f"Bearer {said}"}, admin=True
        )[0]
        assert (statuses("a-token-of-the-first-day"), statuses("a-token-of-the-next-day")) == (401, 200)
        assert "a-token-of" not in router.log.read_text()
