"""What two parsers might read in two ways, and what is no HTTP: each with its status, over real sockets.

Every case is followed by a sound request in the same write. It must not be answered: after a refusal nobody knows
where the next request would begin.
"""

import contextlib
import json

import pytest

from tests.router.harness import Router, read_all

GET = b"GET /health HTTP/1.1\r\n"
HOST = b"Host: x\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
SMUGGLED = b"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"

LENGTHS = {
    "length, then transfer-encoding": (400, POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n" + END),
    "transfer-encoding, then length": (400, POST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n" + END),
    "two lengths": (400, POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcde"),
    "one length twice": (400, POST + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nabcde"),
    "a list of lengths": (400, POST + b"Content-Length: 5, 5\r\n\r\nabcde"),
    "a length with a sign": (400, POST + b"Content-Length: +5\r\n\r\nabcde"),
    "a negative length": (400, POST + b"Content-Length: -5\r\n\r\n"),
    "a hexadecimal length": (400, POST + b"Content-Length: 0x5\r\n\r\nabcde"),
    "a length with an underscore": (400, POST + b"Content-Length: 1_0\r\n\r\n0123456789"),
    "a length in other digits": (400, POST + "Content-Length: \u0665\r\n\r\nabcde".encode()),
    "a length of two words": (400, POST + b"Content-Length: 5 5\r\n\r\nabcde"),
    "an empty length": (400, POST + b"Content-Length:\r\n\r\n"),
    "a length beyond 64 bits": (400, POST + b"Content-Length: 99999999999999999999\r\n\r\n"),
    "a length beyond the limit": (413, POST + b"Content-Length: 65537\r\n\r\n"),
    "a length beyond the limit, held back": (413, POST + b"Content-Length: 65537\r\nExpect: 100-continue\r\n\r\n"),
}
CODINGS = {
    "a coding before chunked": (400, POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + END),
    "chunked twice": (400, POST + b"Transfer-Encoding: chunked, chunked\r\n\r\n" + END),
    "two codings": (400, POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n" + END),
    "an unknown coding": (400, POST + b"Transfer-Encoding: xchunked\r\n\r\n" + END),
    "identity": (400, POST + b"Transfer-Encoding: identity\r\n\r\n"),
    "a quoted coding": (400, POST + b'Transfer-Encoding: "chunked"\r\n\r\n' + END),
    "a coding with a parameter": (400, POST + b"Transfer-Encoding: chunked;q=1\r\n\r\n" + END),
    "a coding after a vertical tab": (400, POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n" + END),
    "a space before its colon": (400, POST + b"Transfer-Encoding : chunked\r\n\r\n" + END),
    "an empty coding": (400, POST + b"Transfer-Encoding:\r\n\r\n"),
    "chunks in HTTP/1.0": (400, b"POST /v1/completions HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n" + END),
}
CHUNKS = {
    "no hexadecimal size": (400, CHUNKED + b"zz\r\n"),
    "a negative size": (400, CHUNKED + b"-1\r\n"),
    "a size with a sign": (400, CHUNKED + b"+5\r\nabcde\r\n" + END),
    "a size with a prefix": (400, CHUNKED + b"0x5\r\nabcde\r\n" + END),
    "a size after a space": (400, CHUNKED + b" 5\r\nabcde\r\n" + END),
    "an empty size": (400, CHUNKED + b"\r\nabcde\r\n" + END),
    "a size beyond 64 bits": (400, CHUNKED + b"f" * 17 + b"\r\nabc"),
    "a chunk longer than its size": (400, CHUNKED + b"5\r\nabcdeXX" + END),
    "a size line that ends in LF": (400, CHUNKED + b"5\nabcde\r\n" + END),
    "a size line that ends in CR": (400, CHUNKED + b"5\rabcde\r\n" + END),
    "a chunk that ends in LF": (400, CHUNKED + b"5\r\nabcde\n" + END),
    "an extension with a bare LF": (400, CHUNKED + b"5;a\nb\r\nabcde\r\n" + END),
    "an extension with a bare CR": (400, CHUNKED + b"5;a\rb\r\nabcde\r\n" + END),
    "a length among the trailers": (400, CHUNKED + b"5\r\nabcde\r\n0\r\nContent-Length: 3\r\n\r\n"),
    "a space before a trailer's colon": (400, CHUNKED + b"5\r\nabcde\r\n0\r\nA : b\r\n\r\n"),
    "chunks beyond the limit": (413, CHUNKED + b"".join(b"4000\r\n%s\r\n" % (b"x" * 0x4000) for _ in range(5))),
}
HEADERS = {
    "a folded header": (400, GET + HOST + b"A: b\r\n c\r\n\r\n"),
    "a header folded with a tab": (400, GET + HOST + b"A: b\r\n\tc\r\n\r\n"),
    "a first line that is folded": (400, GET + b" Host: x\r\n\r\n"),
    "a bare CR in a value": (400, GET + HOST + b"A: b\rc\r\n\r\n"),
    "a CR before the line's end": (400, GET + HOST + b"A: b\r\r\n\r\n"),
    "lines that end in LF": (400, b"GET /health HTTP/1.1\nHost: x\n\n"),
    "one line that ends in LF": (400, GET + b"Host: x\nA: b\r\n\r\n"),
    "a head that ends in LF": (400, GET + HOST + b"\n"),
    "a zero byte in a value": (400, GET + HOST + b"A: b\0c\r\n\r\n"),
    "a control character in a value": (400, GET + HOST + b"A: \x07\r\n\r\n"),
    "a space before a colon": (400, GET + b"Host : x\r\n\r\n"),
    "a tab before a colon": (400, GET + b"Host\t: x\r\n\r\n"),
    "no colon": (400, GET + HOST + b"abc\r\n\r\n"),
    "no name": (400, GET + HOST + b": v\r\n\r\n"),
    "a name that is no token": (400, GET + HOST + b"a(b: v\r\n\r\n"),
    "a name beyond ASCII": (400, GET + HOST + b"\xe9: v\r\n\r\n"),
    "two hosts": (400, GET + HOST + b"Host: y\r\n\r\n"),
    "no host": (400, GET + b"\r\n"),
    "a list of hosts": (400, GET + b"Host: x, y\r\n\r\n"),
    "a user before the host": (400, GET + b"Host: a@x\r\n\r\n"),
    "a path after the host": (400, GET + b"Host: x/y\r\n\r\n"),
    "two authorizations": (400, GET + HOST + b"Authorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n"),
    "an unknown expectation": (417, POST + b"Expect: miracles\r\nContent-Length: 2\r\n\r\n{}"),
    "a head beyond the limit": (431, GET + HOST + b"A: " + b"a" * 9000 + b"\r\n\r\n"),
    "headers beyond the limit": (431, GET + HOST + b"".join(b"X-%d: a\r\n" % n for n in range(2000)) + b"\r\n"),
    "a target beyond the limit": (431, b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n" + HOST + b"\r\n"),
}
LINES = {
    "a method in lower case": (400, b"get /health HTTP/1.1\r\n" + HOST + b"\r\n"),
    "an unknown method": (400, b"BREW /health HTTP/1.1\r\n" + HOST + b"\r\n"),
    "a method of another protocol": (501, b"SETUP /health RTSP/1.0\r\n\r\n"),
    "a method of WebDAV": (501, b"PROPFIND /health HTTP/1.1\r\n" + HOST + b"\r\n"),
    "a tunnel": (400, b"CONNECT x:80 HTTP/1.1\r\n" + HOST + b"\r\n"),
    "a space in the target": (400, b"GET /hea lth HTTP/1.1\r\n" + HOST + b"\r\n"),
    "a zero byte in the target": (400, b"GET /hea\0lth HTTP/1.1\r\n" + HOST + b"\r\n"),
    "a CR in the target": (400, b"GET /hea\rlth HTTP/1.1\r\n" + HOST + b"\r\n"),
    "a space after the version": (400, b"GET /health HTTP/1.1 \r\n" + HOST + b"\r\n"),
    "a space before the method": (400, b" GET /health HTTP/1.1\r\n" + HOST + b"\r\n"),
    "HTTP/0.9": (505, b"GET /health\r\n\r\n"),
    "HTTP/1.2": (400, b"GET /health HTTP/1.2\r\n" + HOST + b"\r\n"),
    "HTTP/2.0": (505, b"GET /health HTTP/2.0\r\n" + HOST + b"\r\n"),
    "HTTP/2's first words": (400, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "an upgrade": (400, GET + HOST + b"Connection: upgrade\r\nUpgrade: h2c\r\n\r\n"),
    "an answer": (400, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
    "a TLS greeting": (400, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
}
CASES = {**LENGTHS, **CODINGS, **CHUNKS, **HEADERS, **LINES}


def exchange(router: Router, data: bytes) -> bytes:
    """All that comes back until the router closes; it may close before everything is sent."""
    with router.connect() as sock:
        with contextlib.suppress(OSError):
            sock.sendall(data)
        return read_all(sock)


@pytest.mark.parametrize(("status", "data"), CASES.values(), ids=CASES)
def test_it_is_refused_with_one_error_and_nothing_after_it_is_read(router: Router, status: int, data: bytes) -> None:
    answer = exchange(router, data + SMUGGLED)
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer
    assert answer.count(b"HTTP/1.1 ") == 1
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"connection: close" in head
    [(name, error)] = json.loads(body).items()
    assert (name, set(error)) == ("error", {"message", "type", "param", "code"})
    assert error["code"] == status
    assert error["message"]
    assert error["type"]


SOUND = {
    "an empty line before": b"\r\n" + GET + HOST + b"\r\n",
    "a header beyond ASCII": GET + HOST + b"A: \xe9\r\n\r\n",
    "an empty value": GET + HOST + b"A:\r\n\r\n",
    "an absolute target": b"GET http://other:80/health HTTP/1.1\r\n" + HOST + b"\r\n",
    "a body of a GET": GET + HOST + b"Content-Length: 3\r\n\r\nabc",
    "an upgrade that is only offered": GET + HOST + b"Upgrade: h2c\r\n\r\n",
    "a length with zeros before it": GET + HOST + b"Content-Length: 003\r\n\r\nabc",
    "a coding in capitals": GET + HOST + b"Transfer-Encoding:\tChunked\r\n\r\n3;a=b\r\nabc\r\n0\r\nA: b\r\n\r\n",
    "a host with a port": GET + b"Host: [::1]:8000\r\n\r\n",
}


@pytest.mark.parametrize("data", SOUND.values(), ids=SOUND)
def test_what_is_sound_is_served_and_so_is_what_follows(router: Router, data: bytes) -> None:
    answer = exchange(router, data + SMUGGLED)
    assert answer.count(b"HTTP/1.1 200 ") == 2, answer


LAST = {
    "a close": GET + HOST + b"Connection: close\r\n\r\n",
    "HTTP/1.0": b"GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
}


@pytest.mark.parametrize("data", LAST.values(), ids=LAST)
@pytest.mark.parametrize("after", [SMUGGLED, b"garbage\r\n\r\n"], ids=["a request", "garbage"])
def test_nothing_is_read_after_the_last_request(router: Router, data: bytes, after: bytes) -> None:
    answer = exchange(router, data + after)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert answer.endswith(b"{}")


@pytest.fixture(autouse=True)
def _unharmed(shared_router: Router) -> object:
    """Whatever was sent: afterwards the router serves and has logged no exception."""
    yield
    assert shared_router.send("GET", "/health")[0] == 200
    assert "Traceback" not in shared_router.log.read_text()
