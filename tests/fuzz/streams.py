"""What a client might send: sound requests, requests with parts that are wrong, damaged bytes, and any split of them.

All of it is drawn from a `random.Random`: hypothesis hands one over whose draws it can shrink, and a plain one is fifty
times faster.
"""

import json
from random import Random
from typing import Any

BODY: dict[str, Any] = {"model": "m", "prompt": "hello", "max_tokens": 2}

_METHODS = [b"POST", b"POST", b"GET", b"HEAD", b"OPTIONS", b"DELETE", b"PUT", b"CONNECT", b"SETUP", b"pOST", b""]
_TARGETS = [
    b"/v1/completions", b"/v1/completions", b"/v1/chat/completions", b"/v1/responses", b"/v1/models/m", b"/health",
    b"/ready", b"/nowhere", b"*", b"/?a=b", b"http://x/health", b"//x", b"/%00", b"/\xff", b"", b"/a b",
    b"/" + b"a" * 9000,
]  # fmt: skip
_VERSIONS = [b"HTTP/1.1"] * 6 + [b"HTTP/1.0", b"HTTP/1.0", b"HTTP/1.2", b"HTTP/2.0", b"http/1.1", b"RTSP/1.0", b""]
_NAMES = [
    b"Host", b"Content-Length", b"Transfer-Encoding", b"Connection", b"Connection", b"Expect", b"Upgrade",
    b"Content-Type", b"TE", b"X-Request-Id", b"traceparent", b"Trailer", b"Content-Length ", b"\tHost", b"A\x00", b"",
    b"Transfer_Encoding", b"content-LENGTH",
]  # fmt: skip
_VALUES = [
    b"x", b"0", b"5", b"+5", b"-1", b"5, 5", b"0x5", b"5 5", b"65537", b"18446744073709551616", b"chunked",
    b"gzip, chunked", b"chunked, chunked", b"identity", b"\x0bchunked", b"close", b"close", b"keep-alive", b"upgrade",
    b"100-continue", b"100-continue", b"h2c", b"application/json", b"trailers", b"a\rb", b"a\r\n b", b"a\nb", b"\x00",
    b"", b"a" * 9000,
]  # fmt: skip
_ENDS = [b"\r\n"] * 24 + [b"\n", b"\r", b"\r\r\n", b"", b" \r\n", b"\r\n "]
_COLONS = [b": "] * 8 + [b":", b" : ", b"", b":\t"]
_SIZES = [b"%x"] * 12 + [b"0x%x", b"+%x", b" %x", b"%x ", b"%x;a=b", b"%x;a\n", b"-%x", b"00000000000000000000%x"]
_LAST = [b"0\r\n\r\n"] * 8 + [
    b"0\r\nA: b\r\n\r\n",
    b"0\r\nContent-Length: 5\r\n\r\n",
    b"00\r\n\r\n",
    b"0\n\n",
    b"0\r\n",
    b"",
]
_REPLACEMENTS = [b"", b"\r\n", b"\n", b"\r", b"\0", b" ", b"\xff", b":", b"0", b"\r\n\r\n"]


def sound_request(random: Random, **more: Any) -> bytes:
    """A request that must be served."""
    data = json.dumps({**BODY, **more}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    if random.random() < 0.3:
        head += b"X-Padding: " + b"p" * random.randint(0, 500) + b"\r\n"
    if random.random() < 0.5:
        return head + b"Content-Length: %d\r\n\r\n" % len(data) + data
    return head + b"Transfer-Encoding: chunked\r\n\r\n" + _chunked(random, data, [b"%x"], [b"\r\n"], [b"0\r\n\r\n"])


def odd_request(random: Random) -> bytes:
    """A request whose every part may be wrong."""
    pick = random.choice
    head = b"%s %s %s" % (pick(_METHODS), pick(_TARGETS), pick(_VERSIONS)) + pick(_ENDS)
    if random.random() < 0.8:
        head += b"Host: x\r\n"
    for _ in range(random.randint(0, 3)):
        value = pick(_VALUES) if random.random() < 0.8 else _noise(random, 12)
        head += pick(_NAMES) + pick(_COLONS) + value + pick(_ENDS)
    data = json.dumps(BODY).encode()
    framing = pick(["length", "length", "chunked", "chunked", "both", "none"])
    if framing in ("length", "both"):
        head += b"Content-Length: %d\r\n" % (len(data) + pick([0, 0, 0, 0, -1, 1]))
    if framing in ("chunked", "both"):
        head += b"Transfer-Encoding: chunked\r\n"
        data = _chunked(random, data, _SIZES, _ENDS, _LAST)
    return head + pick(_ENDS) + data


def damaged(random: Random, data: bytes, most: int = 4) -> bytes:
    """Bytes with a few places changed, doubled, or cut out."""
    for _ in range(random.randint(1, most)):
        at = random.randint(0, len(data))
        end = min(at + random.randint(0, 20), len(data))
        part = data[at:end]
        data = data[:at] + random.choice([*_REPLACEMENTS, part * 2, part.swapcase(), part[::-1]]) + data[end:]
    return data


def stream(random: Random) -> bytes:
    """Everything that may come over one connection."""
    kinds = [
        sound_request,
        odd_request,
        lambda r: damaged(r, sound_request(r)),
        lambda r: damaged(r, odd_request(r)),
        lambda r: _noise(r, 60),
    ]
    return b"".join([random.choice(kinds)(random) for _ in range(random.randint(0, 4))])


def cut(random: Random, data: bytes, most: int = 8) -> list[bytes]:
    """Data in pieces; now and then in single bytes."""
    if random.random() < 0.05:
        return [data[at : at + 1] for at in range(len(data))]
    places = sorted(random.randint(0, len(data)) for _ in range(random.randint(0, most)))
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


def _chunked(random: Random, data: bytes, sizes: list[bytes], ends: list[bytes], last: list[bytes]) -> bytes:
    pick = random.choice
    pieces = [piece for piece in cut(random, data, 3) if piece]
    chunks = [pick(sizes).replace(b"%x", b"%x" % len(piece)) + pick(ends) + piece + pick(ends) for piece in pieces]
    return b"".join(chunks) + pick(last)


def _noise(random: Random, most: int) -> bytes:
    return bytes(random.randint(0, 255) for _ in range(random.randint(0, most)))
