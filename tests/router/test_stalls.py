"""Pauses that a client sees in its stream are counted, each once and at its end."""

import socket
import threading
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.router.harness import (
    END,
    STREAM_HEAD,
    Asked,
    FakeEngine,
    Router,
    eventually,
    post,
    read_until,
    routing,
    token,
)


def counted(router: Router) -> tuple[float, float]:
    """How many stalls, and their seconds."""
    page = router.send("GET", "/metrics", admin=True)[2].decode()
    family = next(f for f in text_string_to_metric_families(page) if f.name == "narwhal_stream_stall_seconds")
    values = {sample.name.rpartition("_")[2]: sample.value for sample in family.samples if "le" not in sample.labels}
    return values["count"], values["sum"]


def test_a_stall_is_counted_when_it_ends(tmp_path: Path) -> None:
    engines, go_on, end = [FakeEngine() for _ in range(2)], threading.Event(), threading.Event()

    def pausing(asked: Asked, sock: socket.socket) -> None:
        sock.sendall(STREAM_HEAD + token(" a"))
        go_on.wait(60)
        sock.sendall(token(" b"))
        end.wait(60)
        sock.sendall(token(" c") + END)

    for engine in engines:
        engine.leg_2 = engine.whole = pausing
    with routing(tmp_path, engines) as router, router.connect() as sock:
        sock.sendall(post({"prompt": "x", "max_tokens": 3, "stream": True}))
        read_until(sock, b" a")
        threading.Event().wait(1.2)  # the stall
        assert counted(router) == (0, 0)  # it has not ended yet
        go_on.set()
        eventually(lambda: counted(router)[0] == 1, "the stall")
        assert counted(router)[1] >= 0.5
        end.set()
        read_until(sock, b"[DONE]")
    for engine in engines:
        engine.close()
