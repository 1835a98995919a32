"""Routes whose requests go whole to one engine, and what of a client's headers goes with them."""

import json
import socket
from typing import Any

import pytest

from narwhal.router.routes import DETOKENIZE, EMBEDDINGS, RESPONSES, TOKENIZE
from tests.router.harness import STREAM_HEAD, Asked, FakeEngine, Router, chunk, eventually, post, read_all, reply

RESPONSE = {"model": "m", "input": "hello", "max_output_tokens": 5}
BODIES: dict[str, dict[str, Any]] = {
    RESPONSES: RESPONSE,
    EMBEDDINGS: {"model": "m", "input": "hello"},
    TOKENIZE: {"model": "m", "prompt": "hello"},
    DETOKENIZE: {"model": "m", "tokens": [1, 2]},
}
USAGE = {"input_tokens": 11, "input_tokens_details": {"cached_tokens": 4}, "output_tokens": 5, "total_tokens": 16}


def answering(engines: tuple[FakeEngine, FakeEngine], document: object, status: int = 200) -> None:
    for engine in engines:
        engine.whole = lambda asked, sock: reply(sock, document, status)


@pytest.mark.parametrize("route", BODIES)
def test_it_goes_to_one_engine_as_it_is_and_its_answer_comes_back(
    router: Router, prefill: FakeEngine, decode: FakeEngine, route: str
) -> None:
    answering((prefill, decode), {"object": "whatever", "data": [1.5]})
    status, headers, body = router.send(
        "POST", route, BODIES[route], {"x-request-id": f"passed{route.replace('/', '-')}"}
    )
    assert (status, json.loads(body)) == (200, {"object": "whatever", "data": [1.5]})
    [asked] = prefill.generations + decode.generations
    assert (asked.path, asked.leg) == (route, 0)
    assert asked.body == BODIES[route] | ({"store": False} if route == RESPONSES else {})
    assert asked.headers["x-request-id"] == headers["x-request-id"]
    rows = lambda: [row for row in router.rows("request") if row["id"] == headers["x-request-id"]]  # noqa: E731
    eventually(lambda: bool(rows()), "its row")
    [row] = rows()
    assert (row["route"], row["outcome"], row["whole"], row["prefill_engine"]) == (route, "served", True, "")


def test_tokens_of_a_response_are_counted_from_its_usage(
    router: Router, prefill: FakeEngine, decode: FakeEngine
) -> None:
    kinds = ("created", "in_progress", "output_item.added", "content_part.added", "output_text.delta")
    pieces = [{"type": f"response.{kind}", "response": {"usage": None}} for kind in kinds]
    pieces.append({"type": "response.completed", "response": {"id": "r", "usage": USAGE, "user": None}})
    data = [
        b"event: %s\ndata: %s\n\n" % (str(p["type"]).encode(), json.dumps(p, separators=(",", ":")).encode())
        for p in pieces
    ]
    body = b"".join(map(chunk, data)) + b"0\r\n\r\n"

    def stream(asked: Asked, sock: socket.socket) -> None:
        sock.sendall(STREAM_HEAD + body)

    prefill.whole = decode.whole = stream
    with router.connect() as sock:
        extra = "Connection: close\r\nX-Request-Id: response-1\r\n"
        sock.sendall(post({**RESPONSE, "stream": True}, RESPONSES, extra=extra))
        assert read_all(sock).partition(b"\r\n\r\n")[2] == body
    answering((prefill, decode), {"object": "response", "usage": USAGE})
    assert router.send("POST", RESPONSES, RESPONSE, {"x-request-id": "response-2"})[0] == 200

    def counts() -> list[tuple[int, int]]:
        rows = [row for row in router.rows("request") if row["id"] in ("response-1", "response-2")]
        return [(row["prompt_tokens"], row["completion_tokens"]) for row in rows]

    eventually(lambda: len(counts()) == 2, "the rows")
    assert counts() == [(11, 5), (11, 5)]


@pytest.mark.parametrize("status", [404, 501])
def test_an_engine_that_does_not_serve_a_route_is_not_to_blame(
    router: Router, prefill: FakeEngine, decode: FakeEngine, status: int
) -> None:
    answering((prefill, decode), {"detail": "Not Found"}, status)
    got, _, body = router.send("POST", EMBEDDINGS, BODIES[EMBEDDINGS])
    error = json.loads(body)["error"]
    assert (got, error["code"]) == (status, status)
    assert EMBEDDINGS in error["message"]
    assert len(prefill.generations + decode.generations) == 1  # another engine would say the same
    assert all(engine["state"] == "live" for engine in router.state()["engines"])


@pytest.mark.parametrize("body", [{"model": "m"}, {"model": "other", "input": "x"}, {"input": {"a": 1}}])
def test_what_is_wrong_is_found_at_the_door(
    router: Router, prefill: FakeEngine, decode: FakeEngine, body: dict[str, Any]
) -> None:
    status, _, data = router.send("POST", EMBEDDINGS, body)
    assert status in (400, 404)
    assert set(json.loads(data)["error"]) == {"message", "type", "param", "code"}
    assert prefill.generations + decode.generations == []


TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
OURS = {"host", "content-type", "x-request-id", "content-length"}


def test_of_a_client_s_headers_only_its_trace_goes_to_engines(
    router: Router, prefill: FakeEngine, decode: FakeEngine
) -> None:
    sent = {
        "traceparent": TRACE, "tracestate": "a=b", "authorization": "Bearer k", "cookie": "a=b", "te": "trailers",
        "x-data-parallel-rank": "1", "keep-alive": "timeout=9", "proxy-authorization": "Basic x",
    }  # fmt: skip
    body = {"model": "m", "prompt": "hello", "max_tokens": 2}
    assert router.send("POST", "/v1/completions", body, sent)[0] == 200
    for [asked] in (prefill.generations, decode.generations):
        assert set(asked.headers) == OURS | {"traceparent", "tracestate"}
        assert asked.headers["traceparent"] == TRACE


@pytest.mark.parametrize("value", ["a" * 600, "\xe9"])
def test_a_trace_that_is_none_stays_here(router: Router, prefill: FakeEngine, decode: FakeEngine, value: str) -> None:
    body = {"model": "m", "prompt": "hello", "max_tokens": 2}
    assert router.send("POST", "/v1/completions", body, {"tracestate": value})[0] == 200
    for [asked] in (prefill.generations, decode.generations):
        assert set(asked.headers) == OURS


@pytest.mark.parametrize("stream", [False, True])
def test_no_header_of_an_engine_s_answer_goes_to_a_client(router: Router, decode: FakeEngine, stream: bool) -> None:
    told = b"server: engine-7\r\nset-cookie: a=b\r\nx-engine: 10.0.0.7\r\nconnection: keep-alive, x-engine\r\n"
    head = STREAM_HEAD.replace(b"\r\n\r\n", b"\r\n" + told + b"\r\n")
    data = b"data: {}\n\n" if stream else json.dumps({"choices": []}).encode()
    head = head if stream else head.replace(b"text/event-stream; charset=utf-8", b"application/json")
    decode.leg_2 = lambda asked, sock: sock.sendall(head + chunk(data) + b"0\r\n\r\n")
    status, headers, body = router.send("POST", "/v1/completions", {"prompt": "hello", "stream": stream})
    assert (status, body) == (200, data)
    own = {"content-type", "x-request-id"} | ({"transfer-encoding", "cache-control"} if stream else {"content-length"})
    assert set(headers) == own
