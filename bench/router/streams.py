"""Time added to the first token and to each chunk, and memory: thousands of streams, and one that nobody reads."""

import contextlib
import json
import socket
import time

import processes
from cpu import check
from routers import DIRECT, SECURED, Running
from scenes import Figure, Goal, Sample, Scene, Stage
from tools import ENGINE_PACE_US, Load, Mock, ToolError, load

RAMP, TLS_RAMP = 1000, 200
"""Streams that begin in a second, at most; a handshake costs a millisecond and more."""
SLACK = 2
"""How much longer streams last than the ramp: on a slow machine the last begins late."""
OPENING = 128
"""Streams that may wait for their first token at a time: the scene is of streams, not of a crowd at the door."""
SECOND_US = 1_000_000
UNREAD_TOKENS = 420_000
"""About 120 MB of events."""
LEAVERS = 20
PATIENCE_S = 4.0
"""How long an engine may go on for a client that left until we call it never."""


def _first_token(stage: Stage, router: Running) -> Sample:
    stage.mock.set()
    seen = load(router.port, stream=True, connections=2000, rate=200, requests=1200, tokens=4, body=2000, seconds=30)
    check(router, seen)
    return {"ttft": seen.first_byte_ms.p50}


def _many(stage: Stage, router: Running) -> Sample:
    """Streams of one token a second, each on its own beat."""
    mock, count = stage.mock, stage.streams
    mock.set(pace_us=SECOND_US)
    idle = processes.pss_bytes(router.pid) if router.name != DIRECT else 0
    ramp = TLS_RAMP if router.tls else RAMP
    tokens = round(stage.stream_s + SLACK * count / ramp)
    shape = {"connections": count, "requests": count, "tokens": tokens, "body": 2000, "ramp": ramp, "opening": OPENING}
    running = Load(router.port, stream=True, tls=router.tls, **shape)
    most = active = 0
    while running.running:
        now = mock.counters()["active"]
        active = max(active, now)
        if router.name != DIRECT and now >= active:
            most = max(most, processes.pss_bytes(router.pid))
        time.sleep(0.5)
    seen = running.result()
    failed = seen.failed + seen.refused + seen.unfinished
    if active < 0.99 * (count - failed):
        raise ToolError(f"{router.name}: at most {active} of {count} streams ran at a time: the machine is too slow")
    return {
        "streams": float(active),
        "memory": (most - idle) / max(active, 1) / 1024,
        "failed": float(failed),
        "refused": float(seen.refused),
        "bad_status": float(seen.bad_status),
        "delay_p50": seen.chunk_delay_ms.p50,
        "delay_p99": seen.chunk_delay_ms.p99,
    }


def _ask(port: int, tokens: int) -> bytes:
    body = json.dumps({"model": "mock", "prompt": "hello", "max_tokens": tokens, "stream": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
    return head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body


def _unread(stage: Stage, router: Running) -> Sample:
    """A client that asks for much and reads nothing; its window stays small."""
    mock = stage.mock
    mock.set(burst=200)
    idle = most = processes.pss_bytes(router.pid)
    with contextlib.closing(socket.socket()) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        client.connect(("127.0.0.1", router.port))
        begun = mock.counters()["chunks"]
        client.sendall(_ask(router.port, UNREAD_TOKENS))
        if not processes.eventually(lambda: mock.counters()["chunks"] > begun):
            raise ToolError(f"{router.name}: the engine was not asked")
        made, still = -1, 0
        while still < 10:  # until the engine has made nothing for half a second
            now = mock.counters()["chunks"]
            still = still + 1 if now == made else 0
            made = now
            most = max(most, processes.pss_bytes(router.pid))
            time.sleep(0.05)
    _until_idle(mock)
    return {"growth": (most - idle) / 1e6}


def _until_idle(mock: Mock) -> None:
    if not processes.eventually(lambda: mock.counters()["active"] == 0):
        raise ToolError("streams of the last scene go on at the mock engines")


def _leave(stage: Stage, router: Running) -> Sample:
    """Clients that leave in mid-stream: milliseconds until the engine notices, at most."""
    mock = stage.mock
    mock.set(pace_us=ENGINE_PACE_US)
    longest = 0.0
    for _ in range(LEAVERS):
        before = mock.counters()["aborts"]
        with contextlib.closing(socket.create_connection(("127.0.0.1", router.port), timeout=60)) as client:
            client.sendall(_ask(router.port, 400))
            seen = b""
            while b"#000003" not in seen:
                piece = client.recv(65536)
                if not piece:
                    raise ToolError(f"{router.name} closed a stream in its middle")
                seen += piece
            left_ns = time.monotonic_ns()
        noticed = processes.eventually(lambda: mock.counters()["aborts"] > before, within_s=PATIENCE_S, every_s=0.01)  # noqa: B023 - used at once
        if not noticed:
            _until_idle(mock)
            return {"leave": PATIENCE_S * 1e3}
        longest = max(longest, (mock.counters()["aborted_ns"] - left_ns) / 1e6)
    return {"leave": longest}


SCENES = (
    Scene(
        (Figure("ttft", "added time to first token at 200 req/s, p50", "ms", Goal(0.75, 1.0), added=True),),
        _first_token,
    ),
    Scene(
        (
            Figure("memory", "memory per stream, {streams} streams", "KB", Goal(ours=10.0)),
            Figure("failed", "failed of {streams} streams", "", Goal(ours=0.0), fold="max"),
            Figure("delay_p50", "added delay of a chunk at {streams} streams, p50", "ms", added=True),
            Figure("delay_p99", "added delay of a chunk at {streams} streams, p99", "ms", added=True),
        ),
        _many,
        fresh=True,
    ),
    Scene(
        (
            Figure("memory", "memory per stream, {streams} streams, TLS", "KB", Goal(ours=40.0), SECURED, peers=False),
            Figure("failed", "failed of {streams} streams, TLS", "", Goal(ours=0.0), SECURED, fold="max", peers=False),
        ),
        _many,
        fresh=True,
    ),
    Scene(
        (Figure("growth", "growth for an unread stream of 120 MB", "MB", Goal(ours=2.0), fold="max"),),
        _unread,
        fresh=True,
    ),
    Scene((Figure("leave", "client leaves: engine stops within", "ms", Goal(ours=100.0), fold="max"),), _leave),
)
