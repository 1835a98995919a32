"""What is refused before its body is read, and how much of bodies the router holds."""

import contextlib
import json
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from narwhal.router.http import LINGER_S, SMALL_BODY, Connection
from narwhal.router.syntax import BadRequestError
from narwhal.router.tenants import new_key
from tests.router.harness import (
    END,
    STREAM_HEAD,
    Asked,
    FakeEngine,
    Router,
    eventually,
    post,
    read_all,
    read_until,
    routing,
    token,
    tokens,
)
from tests.router.test_tenants import written
from tests.router.wires import App, Clock, Transport

LARGE = 8_000_000
ROOM = 1_000_000
SERVING = f"admission: open, max_body_bytes: {ROOM}, max_buffered_bytes: {ROOM}, shutdown_s: 5"


def head(length: int | None, *, key: str = "", expect: bool = False) -> bytes:
    """The head of a request whose body stays away, or comes in chunks."""
    lines = ["POST /v1/completions HTTP/1.1", "Host: x", "Content-Type: application/json"]
    lines += [f"Content-Length: {length}" if length is not None else "Transfer-Encoding: chunked"]
    lines += [f"Authorization: Bearer {key}"] * bool(key) + ["Expect: 100-continue"] * expect
    return "\r\n".join([*lines, "", ""]).encode()


def refused(router: Router, data: bytes) -> tuple[int, dict[str, str], Any]:
    """Status, headers and error of the one answer, after which the router closes."""
    with router.connect() as sock:
        sock.sendall(data)
        start, _, body = read_all(sock).partition(b"\r\n\r\n")
    status, *lines = start.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    assert headers["connection"] == "close"
    return int(status.split()[1]), headers, json.loads(body)["error"]


def unread(router: Router) -> dict[str, float]:
    """`narwhal_requests_refused_unread_total` by code."""
    text = router.send("GET", "/metrics", admin=True)[2].decode()
    counts = re.findall(r'narwhal_requests_refused_unread_total\{code="(\w+)"\} (\S+)', text)
    return {code: float(count) for code, count in counts}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {"lab": new_key(), "off": new_key()}


@pytest.fixture(scope="module")
def guarded(
    tmp_path_factory: pytest.TempPathFactory, pair: tuple[FakeEngine, FakeEngine], keys: dict[str, str]
) -> Iterator[Router]:
    """A router with tenants, which lets in what can be served in time."""
    folder = tmp_path_factory.mktemp("guarded")
    files = {name: written(folder / name, key)["file"] for name, key in keys.items()}
    tenants = (
        f"\n  tenants: [{{name: lab, keys: [{{file: {files['lab']}}}], max_concurrency: 1}},"
        f" {{name: off, keys: [{{file: {files['off']}}}], disabled: true}}]"
    )
    serving = "admission: predictive, shutdown_s: 5"
    with routing(folder, list(pair), tenants=tenants, serving=serving) as router:
        yield router


@pytest.mark.parametrize("expect", [False, True])
@pytest.mark.parametrize("length", [LARGE, None])
def test_without_a_key_no_large_body_is_read(guarded: Router, length: int | None, expect: bool) -> None:
    status, headers, error = refused(guarded, head(length, expect=expect))
    assert (status, error["code"]) == (401, "missing_api_key")
    assert headers["www-authenticate"].lower() == "bearer"


def test_expect_gets_its_final_status_whatever_the_size(guarded: Router) -> None:
    assert refused(guarded, head(10, key=new_key(), expect=True))[0] == 401


def test_a_client_that_sends_its_body_all_the_same_sees_why(guarded: Router) -> None:
    assert refused(guarded, head(LARGE, key=new_key()) + b"x" * LARGE)[2]["code"] == "invalid_api_key"


def test_disabled_tenants_are_refused_by_the_head(guarded: Router, keys: dict[str, str]) -> None:
    assert refused(guarded, head(LARGE, key=keys["off"]))[::2][0] == 403


def test_a_small_body_is_read_and_the_connection_kept(guarded: Router) -> None:
    with guarded.connect() as sock:
        for _ in range(2):
            sock.sendall(head(SMALL_BODY) + b"x" * SMALL_BODY)
            answer = read_until(sock, b"}}")
            assert answer.startswith(b"HTTP/1.1 401")
            assert b"connection: close" not in answer


def test_a_tenant_at_its_limit_is_refused_by_the_head(
    guarded: Router, keys: dict[str, str], prefill: FakeEngine
) -> None:
    prefill.leg_1 = lambda asked, sock: prefill.wait_gone(sock)
    with guarded.connect() as sock:
        sock.sendall(post({"prompt": "x"}, extra=f"Authorization: Bearer {keys['lab']}\r\n"))
        eventually(lambda: guarded.state()["tenants"][0]["open"] == 1, "the first request")
        status, headers, error = refused(guarded, head(LARGE, key=keys["lab"]))
    assert (status, error["code"]) == (429, "tenant_concurrency")
    assert int(headers["retry-after"]) >= 1
    assert headers["x-request-id"]
    eventually(lambda: guarded.state()["tenants"][0]["open"] == 0, "its end")


def test_a_prompt_that_is_too_long_by_its_content_length(guarded: Router, keys: dict[str, str]) -> None:
    before = unread(guarded).get("prompt", 0)
    status, headers, error = refused(guarded, head(32_000_000, key=keys["lab"]))
    assert (status, error["code"]) == (429, "prompt")
    assert "retry-after" not in headers, "it would not help"
    assert unread(guarded)["prompt"] == before + 1
    with guarded.connect() as sock:
        sock.sendall(head(SMALL_BODY + 1, key=keys["lab"], expect=True))
        assert read_until(sock, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"


def test_many_slow_uploads_hold_no_more_than_they_may(tmp_path: Path, prefill: FakeEngine, decode: FakeEngine) -> None:
    with routing(tmp_path, [prefill, decode], serving=SERVING) as router, contextlib.ExitStack() as stack:
        before = router.rss_bytes()
        uploads = [stack.enter_context(router.connect()) for _ in range(40)]
        for sock in uploads:  # each says that it will send less than there is room for, and sends nearly all of it
            sock.sendall(head(200_000) + b"x" * 199_000)
        eventually(lambda: unread(router).get("buffer_full", 0) >= 35, "the refusals")
        answers = [answer for sock in uploads if (answer := _what_came(sock))]
        assert len(answers) == unread(router)["buffer_full"]
        assert len(uploads) - len(answers) >= 4
        for answer in answers:
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"retry-after: 1\r\n" in answer
            assert b'"buffer_full"' in answer
        assert router.rss_bytes() - before < 40 * 200_000
        assert refused(router, head(500_000))[2]["code"] == "buffer_full"
        for sock in uploads:
            sock.close()
        body = {"prompt": [1] * 100_000, "max_tokens": 2}
        eventually(lambda: router.send("POST", "/v1/completions", body)[0] == 200, "room")
        for _ in range(6):  # what was answered is held no more
            assert router.send("POST", "/v1/completions", body)[0] == 200


def test_a_stream_that_has_begun_keeps_no_body(tmp_path: Path, prefill: FakeEngine, decode: FakeEngine) -> None:
    go_on = threading.Event()

    def one_token(asked: Asked, sock: socket.socket) -> None:
        if not asked.body.get("stream"):
            tokens(asked, sock)
            return
        sock.sendall(STREAM_HEAD + token(" t"))
        assert go_on.wait(60)
        sock.sendall(END)

    decode.leg_2 = one_token
    body = {"prompt": "x" * (ROOM * 7 // 10), "max_tokens": 2}
    with routing(tmp_path, [prefill, decode], serving=SERVING) as router, router.connect() as sock:
        sock.sendall(post({**body, "stream": True}))
        assert b" t" in read_until(sock, token(" t"))
        assert router.send("POST", "/v1/completions", body)[0] == 200, "there is room"
        go_on.set()
        assert read_until(sock, END).endswith(END)


def _what_came(sock: socket.socket) -> bytes:
    sock.settimeout(0.0)
    with contextlib.suppress(BlockingIOError, ConnectionResetError):
        return sock.recv(65536)
    return b""


class Strict(App):
    """Refuses every body that is not small."""

    max_body = 200_000

    def judge(self, connection: Connection, method: bytes, path: str, headers: dict[bytes, bytes], length: int) -> int:
        raise BadRequestError(403, "no", code="no", headers=b"x-why: no\r\n")

    def handle(self, connection: Connection, request: Any) -> None:
        """Answers later."""


def test_the_refusal_comes_after_the_answers_that_are_due() -> None:
    clock, transport, app = Clock(), Transport(), Strict()
    connection = Connection(app, clock)  # type: ignore[arg-type]
    connection.connection_made(transport)  # type: ignore[arg-type]
    first = post({"prompt": "hello"})
    connection.data_received(first + head(100_000) + b"x" * 50_000)
    assert transport.written == b""
    assert app.buffered == len(first.partition(b"\r\n\r\n")[2])
    connection.data_received(b"x" * 50_000 + first)  # nobody's
    connection.respond(200, b"{}")
    answers = transport.written.split(b"HTTP/1.1 ")[1:]
    assert [answer[:3] for answer in answers] == [b"200", b"403"]
    assert b"x-why: no\r\n" in answers[1]
    assert app.codes == ["no"]
    assert app.buffered == 0
    assert transport.ended
    assert not transport.closed
    assert clock.waits == [LINGER_S]
    for action in clock.later:
        action()
    assert transport.closed


class Later(App):
    """Judges every body that is not small later."""

    max_body = 200_000

    def judge(self, connection: Connection, method: bytes, path: str, headers: dict[bytes, bytes], length: int) -> int:
        return length


REFUSAL = BadRequestError(429, "no", code="no")


def test_a_later_judgement_holds_back_continue_and_ends_what_is_still_coming() -> None:
    transport, app = Transport(), Later()
    connection = Connection(app, Clock())  # type: ignore[arg-type]
    connection.connection_made(transport)  # type: ignore[arg-type]
    connection.data_received(head(100_000, expect=True))
    assert transport.written == b""
    connection.judged(1, REFUSAL)  # of another request
    connection.judged(100_000, None)
    assert transport.written == b"HTTP/1.1 100 Continue\r\n\r\n"
    connection.data_received(b"x" * 100_000)
    connection.judged(100_000, REFUSAL)  # it is whole, and was let in
    assert transport.written.count(b"HTTP/1.1 ") == 2
    connection.data_received(head(110_000) + b"x" * 50_000)
    connection.judged(110_000, REFUSAL)
    connection.data_received(b"x" * 60_000)
    assert [answer[:3] for answer in transport.written.split(b"HTTP/1.1 ")[1:]] == [b"100", b"200", b"429"]
    assert app.codes == ["no"]
    assert app.buffered == 0


def test_a_judgement_of_a_client_that_has_left_is_nobody_s() -> None:
    transport, app = Transport(), Later()
    connection = Connection(app, Clock())  # type: ignore[arg-type]
    connection.connection_made(transport)  # type: ignore[arg-type]
    connection.data_received(head(100_000) + b"x" * 50_000)
    connection.connection_lost(None)
    connection.judged(100_000, REFUSAL)
    assert (app.buffered, app.codes) == (0, [])


@pytest.mark.parametrize("end", ["answer", "leave", "refuse", "leave while it comes"])
def test_what_is_held_is_given_back(end: str) -> None:
    clock, transport, app = Clock(), Transport(), App()
    app.answers = False
    connection = Connection(app, clock)  # type: ignore[arg-type]
    connection.connection_made(transport)  # type: ignore[arg-type]
    request = post(b"y" * 1000)
    connection.data_received(request * 3 + request[:-500])
    assert app.buffered == 3500
    if end == "refuse":
        connection.data_received(request[-500:] + b"nonsense\r\n\r\n")
        assert app.buffered == 4000
    if end.startswith("leave"):
        connection.connection_lost(None)
    else:
        if end == "answer":
            connection.data_received(request[-500:])
        for _ in range(4):
            connection.respond(200, b"{}")
    assert app.buffered == 0
