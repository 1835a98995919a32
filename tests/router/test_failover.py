"""Clients that leave or lag, connections that go stale, engines that fail while others can serve."""

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
    eventually,
    leg_1,
    post,
    read_all,
    read_until,
    reply,
    routing,
    token,
)
from tests.router.streams import BODY, events, stream

# Who leaves, who is slow


@pytest.mark.parametrize("leg", ["leg_1", "leg_2"])
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("behind", [0, 3], ids=["alone", "pipelined"])
def test_when_the_client_leaves_its_engine_hears_of_it(
    router: Router, prefill: FakeEngine, decode: FakeEngine, leg: str, streamed: bool, behind: int
) -> None:
    engine = prefill if leg == "leg_1" else decode

    def wait(asked: Asked, sock: socket.socket) -> None:
        if streamed and leg == "leg_2":
            sock.sendall(STREAM_HEAD + token(" a"))
        engine.wait_gone(sock)

    setattr(engine, leg, wait)
    before = router.state()["counts"]["cancelled"]
    sock = router.connect()
    sock.sendall(post({**BODY, "stream": streamed}) + post(BODY) * behind)
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
