"""Streams as a client reads them, and engines that break theirs."""

import json
import socket
import threading
from typing import Any

from tests.router.harness import (
    STREAM_HEAD,
    Asked,
    FakeEngine,
    Router,
    post,
    read_all,
    read_until,
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
