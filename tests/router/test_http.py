"""HTTP towards clients, byte by byte over real sockets."""

import contextlib
import json
import socket
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.router.harness import FakeEngine, Router, chunk, post, read_all, read_until

BODY = {"model": "m", "prompt": "hello", "max_tokens": 3}


def exchange(router: Router, data: bytes) -> bytes:
    """All that comes back until the router closes."""
    with router.connect() as sock:
        sock.sendall(data)
        return read_all(sock)


def error(answer: bytes) -> dict[str, Any]:
    """The one error of an answer, in OpenAI's shape."""
    document = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert set(document) == {"error"}
    assert set(document["error"]) == {"message", "type", "param", "code"}
    found: dict[str, Any] = document["error"]
    assert found["message"]
    assert found["type"]
    return found


def test_routes_and_methods(router: Router) -> None:
    assert router.send("GET", "/health")[0] == 200
    assert router.send("GET", "/ready")[0] == 200
    status, headers, body = router.send("GET", "/v1/completions")
    assert (status, headers["allow"]) == (405, "POST")
    assert json.loads(body)["error"]["code"] == 405
    assert router.send("POST", "/v1/models", {})[1]["allow"].startswith("GET")
    for path in ("/", "/v1/rerank", "/narwhal/state", "/metrics"):
        status, _, body = router.send("GET", path)
        assert (status, json.loads(body)["error"]["type"]) == (404, "NotFoundError")


def test_models(router: Router) -> None:
    listed = json.loads(router.send("GET", "/v1/models")[2])
    assert [model["id"] for model in listed["data"]] == ["m"]
    assert json.loads(router.send("GET", "/v1/models/m")[2]) == listed["data"][0]
    status, _, body = router.send("GET", "/v1/models/nope")
    assert (status, json.loads(body)["error"]["param"]) == (404, "model")


def test_head_has_no_body(router: Router) -> None:
    answer = exchange(router, b"HEAD /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.endswith(b"\r\n\r\n")


def test_a_connection_is_kept_and_requests_on_it_are_answered_in_order(router: Router, decode: FakeEngine) -> None:
    with router.connect() as sock:
        for count in (1, 2, 3):
            sock.sendall(post({**BODY, "max_tokens": count}))
            assert b'"completion_tokens": %d' % count in read_until(sock, b'completion_tokens": %d' % count)
        sock.sendall(b"".join(post({**BODY, "max_tokens": count}) for count in (4, 5, 6)))
        data = read_until(sock, b'"completion_tokens": 6')
    places = [data.find(b'"completion_tokens": %d' % count) for count in (4, 5, 6)]
    assert -1 not in places
    assert places == sorted(places)


def test_a_pipelined_request_waits_for_the_stream_before_it(router: Router) -> None:
    with router.connect() as sock:
        sock.sendall(post({**BODY, "stream": True}) + post({**BODY, "max_tokens": 2}))
        data = read_until(sock, b'"completion_tokens": 2')
    assert data.index(b"[DONE]") < data.rindex(b"HTTP/1.1 200")


def test_too_many_pipelined_requests_close_the_connection(router: Router, prefill: FakeEngine) -> None:
    answer = exchange(router, post(BODY) * 200)
    assert answer.count(b"HTTP/1.1 200") < 200


@pytest.mark.parametrize("stream", [False, True])
def test_http_1_0_gets_a_body_without_chunks_and_a_close(router: Router, stream: bool) -> None:
    answer = exchange(router, post({**BODY, "stream": stream}, version="1.0"))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.split()[1] == b"200"
    assert b"chunked" not in head.lower()
    assert b"connection: close" in head.lower()
    if stream:
        assert body.startswith(b"data: {")
        assert body.endswith(b"data: [DONE]\n\n")
        assert body.count(b"data: ") == 4
    else:
        assert json.loads(body)["usage"]["completion_tokens"] == 3


def test_expect_100_continue(router: Router) -> None:
    data = post(BODY, extra="Expect: 100-continue\r\n")
    end = data.index(b"\r\n\r\n") + 4
    with router.connect() as sock:
        sock.sendall(data[:end])
        assert read_until(sock, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(data[end:])
        assert b" 200 " in read_until(sock, b"completion_tokens")
    other = post(BODY, extra="Expect: miracles\r\n")
    assert exchange(router, other).startswith(b"HTTP/1.1 417")


def test_expect_waits_for_the_answer_before(router: Router) -> None:
    second = post(BODY, extra="Expect: 100-continue\r\n")
    end = second.index(b"\r\n\r\n") + 4
    with router.connect() as sock:
        sock.sendall(post(BODY) + second[:end])
        data = read_until(sock, b"100 Continue\r\n\r\n")
        assert data.index(b"HTTP/1.1 200") < data.index(b"HTTP/1.1 100")
        sock.sendall(second[end:])
        assert b"HTTP/1.1 200" in read_until(sock, b"completion_tokens")


def test_a_chunked_request_body_in_small_pieces(router: Router) -> None:
    data = json.dumps(BODY).encode()
    with router.connect() as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        for at in range(0, len(data), 7):
            sock.sendall(chunk(data[at : at + 7]))
        sock.sendall(b"0\r\n\r\n")
        assert b" 200 " in read_until(sock, b"completion_tokens")


@pytest.mark.parametrize("tail", [b"X-A: " + b"a" * 1_000_000, b"".join(b"X-%d: a\r\n" % n for n in range(2000))])
def test_a_giant_head_is_refused(router: Router, tail: bytes) -> None:
    answer = exchange(router, b"GET /health HTTP/1.1\r\nHost: x\r\n" + tail)
    assert answer.startswith(b"HTTP/1.1 431")
    assert error(answer)["code"] == 431


def test_a_head_after_a_large_body_is_measured_by_itself(router: Router) -> None:
    large = {**BODY, "prompt": "x" * 60_000}
    with router.connect() as sock:
        sock.sendall(post(large) + b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        data = read_all(sock)
    assert data.count(b"HTTP/1.1 200") == 2


@pytest.mark.parametrize("chunked", [False, True])
def test_a_giant_body_is_refused_and_the_client_can_read_why(router: Router, chunked: bool) -> None:
    data = b'{"prompt": "' + b"x" * 2_000_000 + b'"}'
    if chunked:
        head = post(b"")[: post(b"").index(b"Content-Length")]
        data = head + b"Transfer-Encoding: chunked\r\n\r\n" + chunk(data) + b"0\r\n\r\n"
    else:
        data = post(data)
    answer = exchange_despite_reset(router, data)
    assert answer.startswith(b"HTTP/1.1 413")
    assert error(answer)["code"] == 413


def exchange_despite_reset(router: Router, data: bytes) -> bytes:
    with router.connect() as sock:
        with contextlib.suppress(OSError):
            sock.sendall(data)
        return read_all(sock)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded"])
def test_only_json_is_taken(router: Router, kind: str) -> None:
    status, _, body = router.send("POST", "/v1/completions", BODY, {"content-type": kind})
    assert status in (400, 415)
    assert json.loads(body)["error"]["message"]


@pytest.mark.parametrize("kind", ["application/json", "application/json; charset=utf-8", "Application/JSON"])
def test_json_by_any_spelling_is_taken(router: Router, kind: str) -> None:
    assert router.send("POST", "/v1/completions", BODY, {"content-type": kind})[0] == 200


def test_bad_json_is_a_bad_request(router: Router) -> None:
    status, _, body = router.send("POST", "/v1/completions", b"{bad}")
    assert (status, json.loads(body)["error"]["type"]) == (400, "Bad Request")


def test_a_request_id_is_taken_when_it_is_sound_and_made_when_not(router: Router, decode: FakeEngine) -> None:
    assert router.send("POST", "/v1/completions", BODY, {"x-request-id": "mine-1"})[1]["x-request-id"] == "mine-1"
    assert decode.generations[-1].headers["x-request-id"] == "mine-1"
    made = [
        router.send("POST", "/v1/completions", BODY, {"x-request-id": given})[1]["x-request-id"]
        for given in ("a b", "x" * 300, "<script>")
    ]
    assert len(set(made)) == 3
    assert all(len(name) < 64 and "<" not in name for name in made)


def test_secrets_and_routing_headers_of_clients_stay_here(
    router: Router, prefill: FakeEngine, decode: FakeEngine
) -> None:
    sent = {"authorization": "Bearer k", "cookie": "a=b", "x-priority": "1", "x-data-parallel-rank": "1"}
    assert router.send("POST", "/v1/completions", BODY, sent)[0] == 200
    for asked in (*prefill.generations, *decode.generations):
        assert set(asked.headers) == {"host", "content-type", "x-request-id", "content-length"}


@settings(max_examples=60, deadline=None)
@given(st.binary(min_size=1, max_size=200))
def test_garbage_is_answered_with_an_error_or_silence_and_nothing_else_notices(data: bytes) -> None:
    with _fuzzed.connect() as sock:
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        answer = read_all(sock)
    assert answer == b"" or answer.startswith((b"HTTP/1.1 4", b"HTTP/1.1 505"))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_damaged_request_is_answered_with_an_error_or_served(data: st.DataObject) -> None:
    request = bytearray(post(BODY))
    for _ in range(data.draw(st.integers(1, 3))):
        request[data.draw(st.integers(0, len(request) - 1))] = data.draw(st.integers(0, 255))
    with _fuzzed.connect() as sock:
        sock.sendall(bytes(request))
        sock.shutdown(socket.SHUT_WR)
        answer = read_all(sock)
    assert answer == b"" or answer.startswith((b"HTTP/1.1 ", b"HTTP/1.0 "))
    assert b"HTTP/1.1 500" not in answer


_fuzzed: Router


@pytest.fixture(autouse=True)
def _alive(shared_router: Router) -> Any:
    """Whatever a test sent: afterwards the router serves and has logged no exception."""
    global _fuzzed
    _fuzzed = shared_router
    yield
    assert shared_router.send("GET", "/health")[0] == 200
    assert "Traceback" not in shared_router.log.read_text()
