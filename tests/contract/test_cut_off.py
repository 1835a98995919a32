"""A router in front of the contract's engines, and streams that are cut off: the rest comes, whole and nothing else."""

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from tests.contract.engines import MODEL, PATIENCE_S, Engine
from tests.router.harness import Router, eventually, start_router, write_fleet

pytestmark = pytest.mark.e2e
TOKENS = 16
SAID = "the harbour master keeps seven keys"
ASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "completion": ("/v1/completions", {"prompt": SAID}),
    "chat": (
        "/v1/chat/completions",
        {"messages": [{"role": "system", "content": SAID}, {"role": "user", "content": "où ?"}]},
    ),
}


class Cutter:
    """Stands before an engine. Breaks the connection of one stream after so many events, where it is ordered to."""

    def __init__(self, port: int, orders: list[int]) -> None:
        self._port = port
        self._orders = orders
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                engine = socket.create_connection(("127.0.0.1", self._port))
                threading.Thread(target=self._pump, args=(client, engine, False), daemon=True).start()
                threading.Thread(target=self._pump, args=(engine, client, True), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        passed = b""
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if answers and self._orders and b"text/event-stream" in passed + data:
                    passed += data
                    ends = [n for n in range(len(passed)) if passed.startswith(b"\n\n\r\n", n)]
                    if len(ends) >= self._orders[0]:
                        end = ends[self._orders.pop() - 1] + 4
                        target.sendall(data[: len(data) - (len(passed) - end)])
                        break
                target.sendall(data)
        for sock in (source, target):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def cut_router(engine_pair: tuple[Engine, Engine], tmp_path: Path) -> Iterator[tuple[Router, list[int]]]:
    """One engine that prefills, and another behind two addresses that decodes; and where to cut the next stream."""
    orders: list[int] = []
    cutters = [Cutter(engine_pair[1].port, orders) for _ in range(2)]
    path, port, admin_port = write_fleet(
        tmp_path,
        [engine_pair[0].port, *(cutter.port for cutter in cutters)],
        prefill=1,
        slo="ttft_s: 12.0, tpot_s: 10.0",
        serving="admission: open, deadlines: {prefill_s: 0, first_token_s: 0, gap_s: 0}",
        recovery="probe_interval_s: 0.5, probe_timeout_s: 60, eject_after: 1000",
    )
    text = path.read_text().replace("max_model_len: 8192", f"max_model_len: {engine_pair[0].kind.capacity_tokens}")
    path.write_text(text.replace("model: {name: m,", f"model: {{name: {MODEL},"))
    router = start_router(tmp_path, path, port, admin_port)
    try:
        eventually(router.ready, "the router's readiness")
        yield router, orders
    finally:
        router.stop()
        for cutter in cutters:
            cutter.close()


def stream(router: Router, path: str, body: dict[str, Any]) -> list[Any]:
    connection = HTTPConnection("127.0.0.1", router.port, timeout=PATIENCE_S)
    with contextlib.closing(connection):
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        response = connection.getresponse()
        texts = [text.removeprefix("data: ") for text in response.read().decode().split("\n\n") if text]
    return [text if text == "[DONE]" else json.loads(text) for text in texts]


def told(events: list[Any]) -> dict[str, Any]:
    documents = [event for event in events if isinstance(event, dict)]
    choices = [choice for document in documents for choice in document["choices"]]
    said = [choice["delta"] if "delta" in choice else {"content": choice["text"]} for choice in choices]
    return {
        "text": "".join(delta.get("content") or "" for delta in said),
        "roles": [delta["role"] for delta in said if delta.get("role")],
        "finish": [choice["finish_reason"] for choice in choices if choice["finish_reason"]],
        "usage": [document["usage"] for document in documents if document.get("usage")],
        "names": len({(document["id"], document["created"]) for document in documents}),
        "done": events[-1] == "[DONE]",
    }


@pytest.mark.parametrize("kind_of_ask", ASKS)
def test_a_stream_that_is_cut_after_any_event_is_told_whole(
    cut_router: tuple[Router, list[int]], kind_of_ask: str
) -> None:
    router, orders = cut_router
    path, ask = ASKS[kind_of_ask]
    body = {
        **ask,
        "model": MODEL,
        "max_tokens": TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    whole = told(stream(router, path, body))
    assert whole["usage"][0]["completion_tokens"] == TOKENS
    assert whole["names"] == 1
    lead = 1 if "messages" in ask else 0
    for cut in range(1 + lead, TOKENS + lead):
        orders.append(cut)
        assert told(stream(router, path, body)) == whole, f"cut after {cut} events"
        assert not orders, "nothing was cut"
    assert "harbour" not in whole["text"]
    eventually(lambda: len(router.rows("request")) == TOKENS, "the rows")
    rows = router.rows("request")
    continued = [row["continued"] for row in rows]
    assert continued[0] == 0
    assert set(continued) <= {0, 1}
    # a quick engine tells its last tokens in one event: then nothing is missing, and nothing goes on
    assert sum(continued) >= TOKENS // 2
    assert {row["completion_tokens"] for row in rows} == {TOKENS}
