"""Requests that wait in the router: for an engine, for a seat, for too long."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.router.harness import Asked, FakeEngine, eventually, leg_1, post, read_all, read_until, routing, tokens

BODY = {"model": "m", "prompt": "x" * 4000, "max_tokens": 2}


@pytest.fixture
def engines() -> Iterator[list[FakeEngine]]:
    pair = [FakeEngine(), FakeEngine()]
    yield pair
    for engine in pair:
        engine.close()


def holding(gate: threading.Event, answer: object) -> object:
    def wait(asked: Asked, sock: object) -> None:
        gate.wait(60)
        answer(asked, sock)  # type: ignore[operator]

    return wait


IN_FLIGHT = 2
"""`serving.prefill_in_flight`: prompts that an engine is given at a time when they fill a batch."""
QUEUE = "admission: open, queue: {max_requests: 2, max_wait_s: 3}, deadlines: {prefill_s: 60, request_s: 600}"


def test_a_queue_is_bounded_in_length_and_in_time(tmp_path: Path, engines: list[FakeEngine]) -> None:
    gate = threading.Event()
    with routing(tmp_path, engines, serving=QUEUE, slo="ttft_s: 2, tpot_s: 1") as router:
        engines[0].leg_1 = holding(gate, leg_1)  # type: ignore[assignment]
        sockets = []
        for sent in range(1, IN_FLIGHT + 3):
            sock = router.connect()
            sock.sendall(post(BODY))
            sockets.append(sock)
            eventually(lambda sent=sent: router.state()["counts"]["offered"] == sent, "arrival")  # type: ignore[misc]
        assert router.state()["queue"]["requests"] == 2
        status, headers, data = router.send("POST", "/v1/completions", BODY)
        assert (status, json.loads(data)["error"]["code"]) == (429, "queue_full")
        assert int(headers["retry-after"]) >= 1
        sockets.pop().close()  # a client that leaves the queue
        eventually(lambda: router.state()["queue"]["requests"] == 1, "its place")
        eventually(lambda: len(engines[0].generations) == IN_FLIGHT, "all that it is given")
        waited = read_until(sockets[-1], b"}}")
        assert waited.startswith(b"HTTP/1.1 503 ")
        assert b'"queue_timeout"' in waited
        assert b"\r\nretry-after: 1\r\n" in waited
        gate.set()
        for sock in sockets[:IN_FLIGHT]:
            assert read_until(sock, b"}}").startswith(b"HTTP/1.1 200 ")
        outcomes = {name: n for name, n in router.state()["counts"].items() if n}
        assert outcomes == {"offered": 5, "served": 2, "refused": 2, "cancelled": 1}


def test_a_request_has_a_deadline_of_its_own(tmp_path: Path, engines: list[FakeEngine]) -> None:
    gate = threading.Event()
    serving = (
        "admission: open, queue: {max_wait_s: 2}, deadlines: {prefill_s: 0, first_token_s: 0, gap_s: 0, request_s: 3}"
    )
    with routing(tmp_path, engines, serving=serving, slo="ttft_s: 1, tpot_s: 1") as router:
        engines[0].leg_1 = holding(gate, leg_1)  # type: ignore[assignment]
        status, _, data = router.send("POST", "/v1/completions", BODY)
        assert (status, json.loads(data)["error"]["code"]) == (504, "timeout")
        gate.set()
        eventually(lambda: bool(router.rows("request")), "its row")
        row = router.rows("request")[0]
        assert (row["outcome"], row["code"]) == ("failed", "timeout")
        assert row["total_s"] >= 3


def test_the_first_token_s_deadline_does_not_count_for_buffered_answers(
    tmp_path: Path, engines: list[FakeEngine]
) -> None:
    serving = "admission: open, deadlines: {prefill_s: 60, first_token_s: 1.5, gap_s: 60, request_s: 600}"
    gate = threading.Event()
    with routing(tmp_path, engines, serving=serving, slo="ttft_s: 1, tpot_s: 1") as router:
        engines[1].leg_2 = holding(gate, tokens)  # type: ignore[assignment]
        buffered = router.connect()
        buffered.sendall(post(BODY))
        eventually(lambda: len(engines[1].generations) == 1, "leg 2")
        with router.connect() as streamed:
            streamed.sendall(post({**BODY, "stream": True}, extra="Connection: close\r\n"))
            answer = read_all(streamed)
        assert b"[DONE]" in answer  # served by the other engine, after the deadline
        gate.set()
        assert read_until(buffered, b"}}").startswith(b"HTTP/1.1 200 ")
        eventually(lambda: len(router.rows("request")) == 2, "rows")
        assert sorted(row["retries"] for row in router.rows("request"))[0] == 0


def test_admission_refuses_what_would_be_late_and_says_when_to_come_back(
    tmp_path: Path, engines: list[FakeEngine]
) -> None:
    with routing(tmp_path, engines, serving="admission: predictive", slo="ttft_s: 2, tpot_s: 1") as router:
        # 4,000 tokens a second are what the profile says, so this prompt alone takes longer than its target
        status, headers, data = router.send("POST", "/v1/completions", {**BODY, "prompt": [7] * 16000})
        assert (status, json.loads(data)["error"]["code"]) == (429, "prompt")
        assert "retry-after" not in headers
        assert engines[0].generations == []
        gate = threading.Event()
        engines[0].leg_1 = holding(gate, leg_1)  # type: ignore[assignment]
        with router.connect() as sock:
            sock.sendall(post({**BODY, "prompt": [7] * 6000}))
            eventually(lambda: router.state()["counts"]["offered"] == 2, "arrival")
            status, headers, data = router.send("POST", "/v1/completions", {**BODY, "prompt": [7] * 6000})
            assert (status, json.loads(data)["error"]["code"]) == (429, "queue")
            assert int(headers["retry-after"]) >= 1
            gate.set()
            assert read_until(sock, b"}}").startswith(b"HTTP/1.1 200 ")


def test_leg_2_goes_to_an_engine_s_queue_before_half_the_lease_is_over(
    tmp_path: Path, engines: list[FakeEngine]
) -> None:
    """The only seat is taken, and waiting in the router does not renew the lease; waiting in an engine does."""
    gate = threading.Event()
    options = {"seqs": "1\n  kv_lease_s: 4", "slo": "ttft_s: 1, tpot_s: 1"}
    with routing(tmp_path, engines, serving="admission: open", **options) as router:
        engines[1].leg_2 = holding(gate, tokens)  # type: ignore[assignment]
        first, second = router.connect(), router.connect()
        first.sendall(post(BODY))
        eventually(lambda: len(engines[1].generations) == 1, "leg 2")
        second.sendall(post(BODY))
        eventually(lambda: router.state()["seats_waiting"] == 1, "the wait for a seat")
        eventually(lambda: len(engines[1].generations) == 2, "the second leg 2")
        assert router.state()["seats_waiting"] == 0
        gate.set()
        for sock in (first, second):
            assert read_until(sock, b"}}").startswith(b"HTTP/1.1 200 ")
        eventually(lambda: len(router.rows("request")) == 2, "rows")
        slower = max(router.rows("request"), key=lambda row: row["total_s"] - row["prefilled_s"])
        assert slower["total_s"] - slower["prefilled_s"] >= 1.0
