"""The two legs of a request, and what becomes of it when one of them fails."""

import json
import socket
import threading
from typing import Any

import pytest

from tests.router.harness import (
    END,
    ERROR,
    HANDOFF,
    STREAM_HEAD,
    Asked,
    FakeEngine,
    Router,
    chunk,
    event,
    eventually,
    post,
    read_all,
    read_until,
    reply,
    token,
)
from tests.router.streams import BODY, CHAT, broken_stream, events, stream


def test_leg_1_asks_for_one_token_and_a_handoff_and_leg_2_is_the_client_s_body_with_it(
    router: Router, prefill: FakeEngine, decode: FakeEngine
) -> None:
    body = {**BODY, "temperature": 0, "min_tokens": 2, "logprobs": 3, "seed": 7, "stop": ["x"]}
    sent = {**body, "stream_options": {"include_usage": True}}
    answer = stream(router, sent)
    assert events(answer)[-1] == "[DONE]"
    assert events(answer)[-2]["usage"]["completion_tokens"] == 3
    [first], [second] = prefill.generations, decode.generations
    kept = {name: value for name, value in body.items() if name not in ("min_tokens", "logprobs", "max_tokens")}
    params = first.body.pop("kv_transfer_params")
    assert first.body == {**kept, "max_tokens": 1, "stream": False}
    assert params["do_remote_decode"] is True
    assert second.body == {**sent, "stream": True, "kv_transfer_params": HANDOFF}
    assert first.headers["x-request-id"] == second.headers["x-request-id"]


def test_chat_s_own_limit_is_one_in_leg_1(router: Router, prefill: FakeEngine, decode: FakeEngine) -> None:
    body = {**CHAT, "max_completion_tokens": 5}
    assert router.send("POST", "/v1/chat/completions", body)[0] == 200
    [first], [second] = prefill.generations, decode.generations
    assert (first.path, second.path) == ("/v1/chat/completions", "/v1/chat/completions")
    assert (first.body["max_tokens"], first.body["max_completion_tokens"]) == (1, 1)
    assert (second.body["max_tokens"], second.body["max_completion_tokens"]) == (3, 5)


def test_a_buffered_answer_is_the_engine_s(router: Router) -> None:
    status, headers, body = router.send("POST", "/v1/completions", BODY)
    assert status == 200
    assert headers["content-type"] == "application/json"
    assert json.loads(body)["choices"][0]["text"] == " t0 t1 t2"


@pytest.mark.parametrize("more", [{"n": 2}, {"best_of": 2}, {"prompt": ["a", "b"]}, {"echo": True}])
def test_what_cannot_be_split_goes_whole_to_one_engine(
    router: Router, prefill: FakeEngine, decode: FakeEngine, more: dict[str, Any]
) -> None:
    assert router.send("POST", "/v1/completions", {**BODY, **more})[0] == 200
    [asked] = prefill.generations + decode.generations
    assert asked.leg == 0
    assert asked.body == {**BODY, **more}


def test_no_usage_that_was_not_asked_for(router: Router) -> None:
    assert all("usage" not in piece for piece in events(stream(router, BODY))[:-1])


def test_tokens_are_counted_from_usage_or_else_from_frames(router: Router) -> None:
    plain = {**BODY, "max_tokens": 5, "stream": True}
    told = {**BODY, "max_tokens": 6, "stream": True, "stream_options": {"include_usage": True}}
    buffered = {**BODY, "max_tokens": 7}
    for number, body in enumerate([plain, told, buffered]):
        assert router.send("POST", "/v1/completions", body, {"x-request-id": f"counted-{number}"})[0] == 200

    def rows() -> list[Any]:
        return [row for row in router.rows("request") if row["id"].startswith("counted-")]

    eventually(lambda: len(rows()) == 3, "the rows")
    assert [row["completion_tokens"] for row in rows()] == [5, 6, 7]
    assert {row["prompt_tokens"] for row in rows()} == {7}
    assert {row["outcome"] for row in rows()} == {"served"}


def test_the_role_of_a_chat_is_not_its_first_token(router: Router, decode: FakeEngine) -> None:
    """Nothing is shown before a token is there, so that until then another engine may still serve the request."""
    go_on = threading.Event()

    def slow(asked: Asked, sock: socket.socket) -> None:
        sock.sendall(STREAM_HEAD + event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}))
        assert go_on.wait(60)
        sock.sendall(event({"choices": [{"index": 0, "delta": {"content": "hi"}}]}) + END)

    decode.leg_2 = slow
    with router.connect() as sock:
        sock.sendall(post({**CHAT, "stream": True}, "/v1/chat/completions"))
        eventually(lambda: len(decode.generations) == 1, "leg 2")
        sock.settimeout(0.5)
        with pytest.raises(TimeoutError):
            sock.recv(1)
        sock.settimeout(60)
        go_on.set()
        assert b'"role"' in read_until(sock, b"0\r\n\r\n")


def test_a_split_read_reaches_the_client_unchanged(router: Router, decode: FakeEngine) -> None:
    body = b"".join(token(f" \u00e9{n}") for n in range(20)) + END

    def dribble(asked: Asked, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(STREAM_HEAD)
        for at in range(0, len(body), 11):
            sock.sendall(body[at : at + 11])

    decode.leg_2 = dribble
    assert stream(router, BODY).partition(b"\r\n\r\n")[2] == body


# What fails


def test_an_error_of_the_engine_is_the_client_s(router: Router, decode: FakeEngine) -> None:
    error = {"error": {"message": "bad temperature", "type": "BadRequestError", "param": "temperature", "code": 400}}
    decode.leg_2 = lambda asked, sock: reply(sock, error, 400)
    status, _, body = router.send("POST", "/v1/completions", BODY)
    assert (status, json.loads(body)) == (400, error)


def test_an_error_of_another_shape_becomes_openai_s(router: Router, prefill: FakeEngine) -> None:
    prefill.leg_1 = lambda asked, sock: reply(sock, {"detail": "Not Found"}, 404)
    status, _, body = router.send("POST", "/v1/completions", BODY)
    assert status == 404
    assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}


def test_an_error_inside_a_stream_ends_it_with_one_error_event_and_no_done(router: Router, decode: FakeEngine) -> None:
    answer = broken_stream(router, decode, token(" b") + ERROR + END)
    found = events(answer)
    assert "[DONE]" not in found
    assert [piece["choices"][0]["text"] for piece in found[:-1]] == [" a", " b"]
    assert [set(piece) == {"error"} for piece in found][-1]
    assert sum("error" in piece for piece in found) == 1
    assert answer.endswith(b"0\r\n\r\n")


@pytest.mark.parametrize("cut", range(0, 80, 7))
def test_an_error_event_is_seen_wherever_the_read_ends(router: Router, decode: FakeEngine, cut: int) -> None:
    def fail(asked: Asked, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        data = token(" a") + ERROR
        at = len(token(" a")) + cut
        sock.sendall(STREAM_HEAD + data[:at])
        threading.Event().wait(0.05)
        sock.sendall(data[at:] + END)

    decode.leg_2 = fail
    answer = stream(router, BODY)
    assert answer.count(b'"error"') == 1
    assert b"Internal server error" not in answer
    assert b"[DONE]" not in answer


@pytest.mark.parametrize("rest", [b"", b"5", b"40\r\ndata: {", token(" b")[:-1]])
def test_an_engine_that_dies_in_mid_stream_leaves_one_error_event(
    router: Router, decode: FakeEngine, rest: bytes
) -> None:
    decode.leg_2 = lambda asked, sock: (sock.sendall(STREAM_HEAD + token(" a") + rest), sock.shutdown(2))[1]
    answer = stream(router, BODY)
    found = events(answer)
    assert found[0]["choices"][0]["text"] == " a"
    assert set(found[-1]) == {"error"}
    assert len(found) == 2
    assert answer.endswith(b"0\r\n\r\n")


@pytest.mark.parametrize("rest", [b"", b"0\r\n", b"x0\r\n\r\n"])
@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_stream_that_said_done_is_complete_without_its_last_chunk(
    router: Router, decode: FakeEngine, rest: bytes, version: str
) -> None:
    def answer(asked: Asked, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(STREAM_HEAD + token(" a") + event("[DONE]"))
        assert seen.wait(60)
        sock.sendall(rest)
        sock.shutdown(socket.SHUT_RDWR)

    seen = threading.Event()
    decode.leg_2 = answer
    with router.connect() as sock:
        sock.sendall(post({**BODY, "stream": True}, version=version, extra="Connection: close\r\n"))
        start = read_until(sock, b"[DONE]\n\n")
        seen.set()
        answer_bytes = start + read_all(sock)
    assert answer_bytes.endswith(b"[DONE]\n\n" if version == "1.0" else b"[DONE]\n\n\r\n0\r\n\r\n")
    assert b'"error"' not in answer_bytes


def test_http_1_0_gets_the_error_event_too(router: Router, decode: FakeEngine) -> None:
    decode.leg_2 = lambda asked, sock: (sock.sendall(STREAM_HEAD + token(" a") + b"40\r\n"), sock.shutdown(2))[1]
    with router.connect() as sock:
        sock.sendall(post({**BODY, "stream": True}, version="1.0"))
        found = events(read_all(sock))
    assert set(found[-1]) == {"error"}
    assert len(found) == 2


def test_trailers_are_no_content(router: Router, decode: FakeEngine) -> None:
    ending = event("[DONE]") + b"0\r\nx-checksum: abc\r\n\r\n"
    decode.leg_2 = lambda asked, sock: sock.sendall(STREAM_HEAD + token(" a") + ending)
    with router.connect() as sock:
        sock.sendall(post({**BODY, "stream": True}, version="1.0"))
        answer = read_all(sock)
    assert answer.endswith(b"data: [DONE]\n\n")
    assert b"x-checksum" not in answer


@pytest.mark.parametrize("bad", [b"zz\r\nabc\r\n", b"3\r\nabcdef\r\n"])
def test_a_stream_that_is_no_chunked_body_is_cut(router: Router, decode: FakeEngine, bad: bytes) -> None:
    found = events(broken_stream(router, decode, bad))
    assert set(found[-1]) == {"error"}
    assert len(found) == 2


def test_a_chunked_leg_1_is_read(router: Router, prefill: FakeEngine) -> None:
    data = json.dumps({"usage": {"prompt_tokens": 7}, "kv_transfer_params": HANDOFF}).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    prefill.leg_1 = lambda asked, sock: sock.sendall(head + chunk(data[:9]) + chunk(data[9:]) + b"0\r\na: b\r\n\r\n")
    assert router.send("POST", "/v1/completions", BODY)[0] == 200
