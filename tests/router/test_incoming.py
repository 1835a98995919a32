"""A head that is like the one before is not read again: what comes of it is what reading it would give."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narwhal.router import http
from narwhal.router.http import Connection
from narwhal.router.incoming import Incoming
from tests.router.wires import App, Clock, Transport

HEAD = b"POST /v1/completions?a=b HTTP/1.1\r\nHost: x\r\nContent-Length: %s\r\nAuthorization: Bearer k\r\n\r\n"


def message(body: bytes, head: bytes = HEAD) -> bytes:
    return head % (b"%d" % len(body)) + body


class Listening(App):
    """Remembers what was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Incoming] = []

    def handle(self, connection: Connection, request: Incoming) -> None:
        headers = dict(request.headers)
        self.asked.append(Incoming(*(getattr(request, name) for name in request.__struct_fields__)))
        self.asked[-1].headers = headers
        super().handle(connection, request)


def ask(reads: list[bytes]) -> tuple[Listening, Transport, Connection]:
    """Everything that a connection made of these reads."""
    app, transport = Listening(), Transport()
    connection = Connection(app, Clock())  # type: ignore[arg-type]
    connection.connection_made(transport)  # type: ignore[arg-type]
    for data in reads:
        connection.data_received(data)
    return app, transport, connection


@pytest.fixture
def fed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The reads that the parser was given."""
    seen: list[bytes] = []

    class Parser:
        def __init__(self, connection: Connection) -> None:
            self._parser: Any = real(connection)

        def feed_data(self, data: bytes) -> None:
            seen.append(data)
            self._parser.feed_data(data)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._parser, name)

    real = http.httptools.HttpRequestParser
    monkeypatch.setattr(http.httptools, "HttpRequestParser", Parser)
    return seen


def test_the_head_of_the_third_request_is_not_read(fed: list[bytes]) -> None:
    app, transport, _ = ask([message(b"[]"), message(b"{}"), message(b'{"a": 1}'), message(b"")])
    assert fed == [message(b"[]"), message(b"{}")]
    assert [request.body for request in app.asked] == [b"[]", b"{}", b'{"a": 1}', b""]
    assert {(request.method, request.path, request.query) for request in app.asked} == {
        ("POST", "/v1/completions", "a=b")
    }
    assert [request.headers[b"content-length"] for request in app.asked] == [b"2", b"2", b"8", b"0"]
    assert all(request.headers[b"authorization"] == b"Bearer k" and request.keep_alive for request in app.asked)
    assert transport.written.count(b"HTTP/1.1 200 OK") == 4
    assert app.buffered == 0


@pytest.mark.parametrize(
    ("second", "status"),
    [
        (message(b"{}").replace(b"Host: x", b"Host: y"), b"200"),
        (message(b"{}").replace(b": 2", b": 02"), b"200"),
        (message(b"{}").replace(b": 2", b":  2"), b"200"),
        (message(b"{}").replace(b": 2", b": +2"), b"400"),
        (message(b"{}").replace(b": 2", b": 2, 2"), b"400"),
        (message(b"{}").replace(b": 2", b": 2\r\ncontent-length: 2"), b"400"),
        (message(b"{}").replace(b": 2", b": 2\r\ntransfer-encoding: chunked"), b"400"),
        (message(b"{}").replace(b"2\r\n", b"2\n"), b"400"),
        (message(b"x" * (App.max_body + 1)), b"413"),
    ],
)
def test_another_head_is_read(second: bytes, status: bytes) -> None:
    _, after_others, _ = ask([message(b"{}"), message(b"{}"), second])
    _, alone, _ = ask([second])
    answer = after_others.written.removeprefix(ask([message(b"{}"), message(b"{}")])[1].written)
    assert answer == alone.written
    assert answer.startswith(b"HTTP/1.1 " + status)


@given(
    bodies=st.lists(st.binary(max_size=12), min_size=1, max_size=6),
    heads=st.lists(st.sampled_from([HEAD, HEAD.replace(b"Content", b"content"), HEAD.replace(b"x\r", b"yy\r")])),
    cuts=st.lists(st.integers(0, 900), max_size=8),
)
def test_any_split_of_the_bytes_asks_the_same(bodies: list[bytes], heads: list[bytes], cuts: list[int]) -> None:
    whole = [message(body, (heads or [HEAD])[i % len(heads or [HEAD])]) for i, body in enumerate(bodies)]
    data = b"".join(whole)
    ends = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pieces = [data[a:b] for a, b in itertools.pairwise(ends)]
    one_by_one, _, _ = ask(whole)
    split, _, connection = ask(pieces)
    assert split.asked == one_by_one.asked
    assert split.buffered == 0
    assert connection.transport is not None


def test_a_client_whose_heads_differ_is_no_longer_compared(fed: list[bytes]) -> None:
    unlike = [message(b"{}", HEAD.replace(b"Host: x", b"Host: x%d" % n)) for n in range(http.UNLIKE + 1)]
    ask([message(b"{}"), *unlike, message(b"{}"), message(b"{}")])
    assert len(fed) == len(unlike) + 3


def test_a_body_that_there_is_no_room_for_is_refused() -> None:
    app, transport, connection = ask([message(b"{}"), message(b"{}")])
    app.buffered = app.max_buffered - 3
    connection.data_received(message(b"1234"))
    assert b"buffer_full" in transport.written
