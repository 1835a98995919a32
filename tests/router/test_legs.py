"""The two legs of a request, and what becomes of it when one of them fails."""

import json
import socket
import threading
from pathlib import Path
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
    leg_1,
    post,
    read_all,
    read_until,
    reply,
    routing,
    token,
)

BODY: dict[str, Any] = {"model": "m", "prompt": "hello", "max_tokens": 3}
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}


def events(answer: bytes) -> list[Any]:
    """The events of a stream, `[DONE]` included as text."""
    lines = [line[6:] for line in answer.split(b"\n") if line.startswith(b"data: ")]
    return [line.decode() if line == b"[DONE]" else json.loads(line) for line in lines]


def breaking(engine: FakeEngine, rest: bytes) -> threading.Event:
    """Let an engine stream one token, and go on with `rest` once the event is set."""
    seen = threading.Event()

    def answer(asked: Asked, sock: socket.socket) -> None:
        sock.sendall(STREAM_HEAD + token(" a"))
        assert seen.wait(60)
        sock.sendall(rest)

    engine.leg_2 = answer
    return seen


def broken_stream(router: Router, engine: FakeEngine, rest: bytes) -> bytes:
    """What a client gets whose stream goes on with `rest` after its first token was seen."""
    seen = breaking(engine, rest)
    with router.connect() as sock:
        sock.sendall(post({**BODY, "stream": True}, extra="Connection: close\r\n"))
        start = read_until(sock, b" a")
        seen.set()
        return start + read_all(sock)


def stream(router: Router, body: dict[str, Any], path: str = "/v1/completions") -> bytes:
    """Everything of a stream until the router closes the connection."""
    with router.connect() as sock:
        sock.sendall(post({**body, "stream": True}, path, extra="Connection: close\r\n"))
        return read_all(sock)


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


# Who leaves, who is slow


@pytest.mark.parametrize("leg", ["leg_1", "leg_2"])
@pytest.mark.parametrize("streamed", [False, True])
def test_when_the_client_leaves_its_engine_hears_of_it(
    router: Router, prefill: FakeEngine, decode: FakeEngine, leg: str, streamed: bool
) -> None:
    engine = prefill if leg == "leg_1" else decode

    def wait(asked: Asked, sock: socket.socket) -> None:
        if streamed and leg == "leg_2":
            sock.sendall(STREAM_HEAD + token(" a"))
        engine.wait_gone(sock)

    setattr(engine, leg, wait)
    before = router.state()["counts"]["cancelled"]
    sock = router.connect()
    sock.sendall(post({**BODY, "stream": streamed}))
    eventually(lambda: len(engine.generations) == 1, leg)
    if streamed and leg == "leg_2":
        read_until(sock, b" a")
    assert not engine.gone.is_set()
    sock.close()
    assert engine.gone.wait(60)
    eventually(lambda: router.state()["counts"]["cancelled"] == before + 1, "the count")
    state = router.state()
    assert all(e["residents"] == 0 and e["prefills"] == 0 for e in state["engines"])


def test_an_unread_stream_holds_little_memory_and_arrives_whole(router: Router, decode: FakeEngine) -> None:
    piece = token(" " + "x" * 16_000)
    pieces, total = 2_500, 2_500 * len(piece)
    sent = 0

    def flood(asked: Asked, sock: socket.socket) -> None:
        nonlocal sent
        sock.sendall(STREAM_HEAD)
        for _ in range(pieces // 10):
            sock.sendall(piece * 10)
            sent += 10 * len(piece)
        sock.sendall(END)

    stream(router, BODY)
    before = router.rss_bytes()
    decode.leg_2 = flood
    with router.connect() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        sock.sendall(post({**BODY, "stream": True, "max_tokens": pieces}, extra="Connection: close\r\n"))
        seen = [-1]

        def stands_still() -> bool:
            still = sent == seen[0] and sent > 0
            seen[0] = sent
            threading.Event().wait(0.5)
            return still

        eventually(stands_still, "backpressure")
        assert sent < total / 2
        assert router.rss_bytes() - before < 6 << 20
        answer = read_all(sock)
    assert answer.count(b"data: ") == pieces + 1
    assert len(answer.partition(b"\r\n\r\n")[2]) == total + len(END)


# Connections to engines


def test_connections_are_kept_and_a_stale_one_is_replaced_for_leg_1(tmp_path: Path) -> None:
    engines = [FakeEngine(), FakeEngine()]
    with routing(tmp_path, engines, recovery="probe_interval_s: 60") as router:  # looks use connections too
        for _ in range(2):
            assert router.send("POST", "/v1/completions", BODY)[0] == 200
        assert len({asked.connection for asked in engines[0].generations}) == 1
        hung_up = []

        def hang_up_once(asked: Asked, sock: socket.socket) -> None:
            if hung_up:
                leg_1(asked, sock)
            else:
                hung_up.append(asked.connection)
                sock.shutdown(socket.SHUT_RDWR)

        engines[0].leg_1 = hang_up_once
        assert router.send("POST", "/v1/completions", BODY)[0] == 200
        assert hung_up == [engines[0].generations[0].connection]
        assert engines[0].generations[-1].connection != hung_up[0]
        eventually(lambda: len(router.rows("request")) == 3, "the rows")
        assert router.rows("request")[-1]["retries"] == 0
    for engine in engines:
        engine.close()


def test_a_handoff_is_never_sent_twice(router: Router, prefill: FakeEngine, decode: FakeEngine) -> None:
    """A stale connection under leg 2 costs another prefill: a second read of the same blocks may give wrong tokens."""
    numbers = iter(range(100))

    def numbered(asked: Asked, sock: socket.socket) -> None:
        handoff = {**HANDOFF, "remote_request_id": str(next(numbers))}
        reply(sock, {"usage": {"prompt_tokens": 7}, "kv_transfer_params": handoff})

    def hang_up(asked: Asked, sock: socket.socket) -> None:
        sock.shutdown(socket.SHUT_RDWR)

    prefill.leg_1 = numbered
    router.send("POST", "/v1/completions", BODY)  # leaves connections to reuse
    decode.leg_2 = hang_up
    router.send("POST", "/v1/completions", BODY)
    used = [asked.body["kv_transfer_params"]["remote_request_id"] for asked in decode.generations if asked.leg == 2]
    assert len(used) >= 2
    assert len(used) == len(set(used))


# Failing over, with engines to spare


@pytest.fixture
def four(tmp_path: Path) -> Any:
    engines = [FakeEngine() for _ in range(4)]
    with routing(tmp_path, engines) as running:
        yield running, engines
    for engine in engines:
        engine.close()


Four = tuple[Router, list[FakeEngine]]


def test_a_failed_leg_goes_to_another_engine_before_the_first_byte(four: Four) -> None:
    router, engines = four
    broken = {"error": {"message": "broken", "type": "InternalServerError", "param": None, "code": 500}}
    for engine, leg, failing in (
        (engines[0], "leg_1", lambda asked, sock: sock.shutdown(2)),
        (engines[2], "leg_2", lambda asked, sock: sock.sendall(STREAM_HEAD + ERROR + END)),
    ):
        setattr(engine, leg, failing)
        for _ in range(4):
            found = events(stream(router, BODY))
            assert found[-1] == "[DONE]"
            assert len(found) == 4
        engine.reset()
    engines[1].leg_1 = engines[0].leg_1 = lambda asked, sock: reply(sock, broken, 500)
    status, _, body = router.send("POST", "/v1/completions", BODY)
    assert status in (502, 503)
    assert json.loads(body)["error"]["message"]


def test_an_engine_that_is_gone_is_ejected_and_readmitted(four: Four) -> None:
    router, engines = four
    port = engines[0].port
    engines[0].close()
    eventually(lambda: router.state()["engines"][0]["state"] == "ejected", "the ejection")
    assert events(stream(router, BODY))[-1] == "[DONE]"
    engines[0] = FakeEngine(port)
    eventually(lambda: router.state()["engines"][0]["state"] == "live", "the readmission")


def test_a_hung_engine_runs_into_a_deadline(tmp_path: Path) -> None:
    engines = [FakeEngine() for _ in range(4)]
    serving = "admission: open, deadlines: {prefill_s: 3, first_token_s: 3, gap_s: 3, request_s: 600}"
    with routing(tmp_path, engines, serving=serving, slo="ttft_s: 2, tpot_s: 1") as router:
        engines[0].leg_1 = engines[0].whole = lambda asked, sock: engines[0].wait_gone(sock)
        for _ in range(3):
            assert events(stream(router, BODY))[-1] == "[DONE]"
        engines[2].leg_2 = engines[3].leg_2 = lambda asked, sock: (
            sock.sendall(STREAM_HEAD + token(" a")),
            engines[2].wait_gone(sock),
        )[1]
        found = events(stream(router, BODY))
        assert set(found[-1]) == {"error"}
        assert engines[2].gone.wait(60)
    for engine in engines:
        engine.close()
