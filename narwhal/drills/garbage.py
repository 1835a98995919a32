"""Input that is no request, or is one only to a careless reader."""

import contextlib
import random
import socket
import time

from narwhal.drills.clients import Address, say_failed
from narwhal.drills.drill import DrillError, Figures, drill, eventually, expect
from narwhal.drills.fleet import Fleet
from narwhal.drills.plan import Plan

_SECONDS = 8.0
"""Of random damage."""
_SLOW = 20
"""Connections that say a byte now and then."""
_MEMORY_BYTES = 64 << 20
_TIMEOUT_S = 30.0
_HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
_BODY = b'{"model": "drill", "prompt": "hello", "max_tokens": 2}'
_SMUGGLED = b"0\r\n\r\nGET /narwhal/state HTTP/1.1\r\nHost: x\r\n\r\n"


def _with_length(body: bytes) -> bytes:
    return _HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body


HOSTILE: dict[str, bytes] = {
    "noise": bytes(range(256)),
    "another protocol": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
    "a version that is none": b"GET /health HTTP/9.9\r\nHost: x\r\n\r\n",
    "length and chunks": _HEAD + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n" + _SMUGGLED,
    "two lengths": _HEAD + b"Content-Length: 54\r\nContent-Length: 5\r\n\r\n" + _BODY,
    "a length in signs": _HEAD + b"Content-Length: +54\r\n\r\n" + _BODY,
    "a length beyond all": _HEAD + b"Content-Length: 18446744073709551616\r\n\r\n",
    "chunks of another coding": _HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + _SMUGGLED,
    "chunked by a vertical tab": _HEAD + b"Transfer-Encoding: \x0bchunked\r\n\r\n" + _SMUGGLED,
    "a space before the colon": _HEAD + b"Content-Length : 54\r\n\r\n" + _BODY,
    "a folded header": _HEAD + b"X-A: b\r\n c\r\nContent-Length: 54\r\n\r\n" + _BODY,
    "a zero byte in a header": _HEAD + b"X-A: \x00\r\n\r\n",
    "a chunk size beyond all": _HEAD + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
    "a giant head": _HEAD + b"X-Padding: " + b"a" * (1 << 20) + b"\r\n\r\n",
    "a giant target": b"GET /" + b"a" * (1 << 20) + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    "a giant body": _HEAD + b"Content-Length: 1073741824\r\n\r\n" + b"x" * 4096,
    "no JSON": _with_length(b"{" * 1000),
    "nested without end": _with_length(b"[" * 50_000),
    "no UTF-8": _with_length(b'{"model": "drill", "prompt": "\xff\xfe"}'),
    "wrong types": _with_length(b'{"model": "drill", "prompt": {"a": 1}, "max_tokens": "many"}'),
    "a number beyond all": _with_length(b'{"model": "drill", "prompt": "a", "max_tokens": 1e400}'),
    "another's KV": _with_length(
        b'{"model": "drill", "prompt": "a", "kv_transfer_params": {"do_remote_prefill": true}}'
    ),
}
"""What must be answered with a 4xx, or not at all, and then the connection closed."""


@drill("garbage", plan=Plan(2, 1))
def garbage(fleet: Fleet) -> Figures:
    """Garbage, giant, slow and smuggled input.

    4xx, connection closed, nothing else notices; fuzzed for 10 minutes (60 s in CI) without a crash.

    Under traffic, beside connections that say a byte now and then: one input of each kind, which must get at most one
    4xx and then the connection's end; then eight seconds of damaged requests by a fixed seed, none of which may be
    answered 500. No sound request may fail, the log may hold no exception, and memory is bounded. The fuzzers
    themselves are `make fuzz`: ten minutes, and one in CI.
    """
    router = fleet.primary
    with fleet.clients(2) as clients:
        clients.more(5)
        began_bytes = router.process.resident_bytes()
        with contextlib.ExitStack() as stack:
            slow = [_slow(router.address, stack) for _ in range(_SLOW)]
            for name, data in HOSTILE.items():
                _refused(router.address, name, data)
                for sock in slow:
                    with contextlib.suppress(OSError):  # the router may have lost its patience
                        sock.send(b"a")
            tried = _damaged(router.address, random.Random(6))  # noqa: S311 - the same each time
        clients.more(5)
        eventually(lambda: router.state()["queue"]["requests"] == 0, "an empty queue")
    grown = router.process.resident_bytes() - began_bytes
    expect(not clients.failed, f"sound requests failed: {say_failed(clients.failed)}")
    expect(router.process.runs, "the router ended")
    expect("Traceback" not in router.process.log.read_text(), "the router logged an exception")
    expect(grown < _MEMORY_BYTES, f"the router grew by {grown >> 20} MB")
    eventually(router.idle, "empty engines")
    return {
        "requests": len(clients.asked),
        "failed": 0,
        "hostile": len(HOSTILE),
        "damaged": tried,
        "slow_connections": _SLOW,
        "grown_bytes": grown,
    }


def _slow(address: Address, stack: contextlib.ExitStack) -> socket.socket:
    sock = stack.enter_context(socket.create_connection(address, timeout=_TIMEOUT_S))
    sock.sendall(b"POST /v1/completions HTTP/1.1\r\nX-A: ")
    return sock


def _say(address: Address, data: bytes) -> bytes:
    """What is answered to some bytes, until the router closes. Raises `DrillError` when it does not."""
    with socket.create_connection(address, timeout=_TIMEOUT_S) as sock:
        answer = b""
        with contextlib.suppress(ConnectionError):  # it may close while it is still being told
            sock.sendall(data)
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_WR)
        try:
            while piece := sock.recv(65536):
                answer += piece
        except ConnectionError:
            return answer
        except TimeoutError:
            raise DrillError(f"the connection was not closed after {data[:60]!r}: {answer[:200]!r}") from None
    return answer


def _refused(address: Address, name: str, data: bytes) -> None:
    answer = _say(address, data)
    statuses = [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]]
    fits = not answer or (len(statuses) == 1 and statuses[0].startswith(b"4"))
    expect(fits, f"{name} was answered {answer[:200]!r}")


def _damaged(address: Address, source: random.Random) -> int:
    """Requests with a few places changed, for a while; how many they were. Raises `DrillError` for a 500."""
    until_t, tried = time.monotonic() + _SECONDS, 0
    while time.monotonic() < until_t:
        data = bytearray(_with_length(_BODY))
        for _ in range(source.randint(1, 4)):
            at = source.randrange(len(data))
            end = at + source.randint(0, 12)
            data[at:end] = source.choice([b"", b"\r\n", b"\0", b":", bytes(data[at:end]) * 2, source.randbytes(3)])
        answer = _say(address, bytes(data))
        expect(not answer.startswith(b"HTTP/1.1 500"), f"{bytes(data)!r} was answered {answer[:200]!r}")
        tried += 1
    return tried
