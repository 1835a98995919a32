"""What the client listener lets out: nothing about the fleet, whatever goes well or wrong behind it."""

import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import narwhal
from tests.router.harness import ERROR, STREAM_HEAD, Asked, FakeEngine, Router, post, read_all, reply, routing, token
from tests.router.test_http_reference import PAGE

ROUTES = re.findall(
    r"^\| `(/[a-z/0-9_]+)(?:/\{id\})?` \| ((?:GET|POST|DELETE)[A-Z, ]*) \|",
    PAGE[PAGE.index("<!-- clients -->") : PAGE.index("<!-- end -->")],
    re.MULTILINE,
)
BODY = {"model": "m", "prompt": "x", "input": "x", "max_tokens": 2}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}


@pytest.fixture(scope="module")
def engines() -> Iterator[list[FakeEngine]]:
    pair = [FakeEngine(), FakeEngine()]
    yield pair
    for engine in pair:
        engine.close()


@pytest.fixture(scope="module")
def hidden(engines: list[FakeEngine], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Router]:
    with routing(tmp_path_factory.mktemp("hidden"), engines) as router:
        yield router


def let_out(router: Router, requests: list[bytes]) -> bytes:
    """Everything that the client listener writes in answer to these."""
    answers = b""
    for request in requests:
        with router.connect() as sock:
            sock.sendall(request)
            answers += read_all(sock)
    return answers


def every_request(path: str) -> list[bytes]:
    rest = "Host: x\r\nConnection: close\r\n\r\n"
    lines = [f"{method} {path} HTTP/1.1\r\n{rest}".encode() for method in ("GET", "HEAD", "DELETE", "OPTIONS")]
    bodies = [CHAT if "chat" in path else BODY, {}, {"model": "another"}]
    streamed = [{**bodies[0], "stream": True}]
    return lines + [post(body, path, extra="Connection: close\r\n") for body in [*bodies, *streamed]]


def assert_silent(answers: bytes, router: Router, engines: list[FakeEngine]) -> None:
    assert answers.startswith(b"HTTP/1.1 ")
    for secret in (
        "local/",
        "127.0.0.1",
        "localhost",
        "prefill",
        "decode",
        narwhal.__version__,
        "vllm",
        "uvloop",
        "remote_engine_id",
        "kv_transfer_params",
        str(router.admin_port),
        *(str(engine.port) for engine in engines),
    ):
        assert secret.encode().lower() not in answers.lower(), secret
    heads = re.findall(rb"HTTP/1\.1 \d+[^\r\n]*\r\n(.*?)\r\n\r\n", answers, re.DOTALL)
    names = {line.split(b":")[0].lower() for head in heads for line in head.split(b"\r\n")}
    allowed = {"allow", "cache-control", "connection", "content-length", "content-type", "retry-after"}
    allowed |= {"transfer-encoding", "www-authenticate", "x-request-id"}
    assert {name.decode() for name in names} <= allowed


def test_every_route_is_tried() -> None:
    assert {"/v1/completions", "/v1/chat/completions", "/v1/models", "/health", "/ready"} <= {
        path for path, _ in ROUTES
    }


@pytest.mark.parametrize("path", [*(path for path, _ in ROUTES), "/v1/models/m", "/v1/models/none", "/", "/metrics"])
def test_a_healthy_fleet_is_not_to_be_seen(hidden: Router, engines: list[FakeEngine], path: str) -> None:
    assert_silent(let_out(hidden, every_request(path)), hidden, engines)


def cut(asked: Asked, sock: socket.socket) -> None:
    sock.sendall(STREAM_HEAD + token(" t"))
    sock.shutdown(socket.SHUT_RDWR)


def fail_in_the_stream(asked: Asked, sock: socket.socket) -> None:
    sock.sendall(STREAM_HEAD + token(" t") + ERROR + b"0\r\n\r\n")


def fail(asked: Asked, sock: socket.socket) -> None:
    reply(sock, {"error": {"message": "engine 127.0.0.1 of vllm broke"}}, 500)


def nonsense(asked: Asked, sock: socket.socket) -> None:
    sock.sendall(b"vllm 0.26 at 127.0.0.1\r\n\r\n")


def close(asked: Asked, sock: socket.socket) -> None:
    sock.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("how", [cut, fail_in_the_stream, fail, nonsense, close])
@pytest.mark.parametrize("legs", [("leg_2", "whole"), ("leg_1", "leg_2", "whole")])
def test_nor_one_that_fails(
    hidden: Router, engines: list[FakeEngine], legs: tuple[str, ...], how: Callable[[Asked, socket.socket], None]
) -> None:
    for engine in engines:
        for leg in legs:
            setattr(engine, leg, how)
    try:
        kinds = [{"stream": True}, {"stream": True, "n": 2}]
        kinds += [{}, {"n": 2}] if how not in (cut, fail_in_the_stream) else []
        answers = let_out(hidden, [post({**BODY, **kind}, extra="Connection: close\r\n") for kind in kinds])
        assert_silent(answers, hidden, engines)
        assert answers.count(b'"error"') == len(kinds)
    finally:
        for engine in engines:
            engine.reset()


def test_nor_one_that_is_not_there(tmp_path: Path) -> None:
    absent = [FakeEngine() for _ in range(2)]
    for engine in absent:
        engine.close()
    with routing(tmp_path, absent, wait=False) as router:
        router.wait_listening()
        answers = let_out(router, [*every_request("/v1/completions"), *every_request("/ready")])
        assert b" 503 " in answers
        assert_silent(answers, router, absent)
