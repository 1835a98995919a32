"""HTTP/1.1 towards clients: one protocol class for both listeners, with limits, pipelining and flow control.

httptools finds the messages; what it lets pass and must not pass is refused here. Requests of one connection are
served one after the other; while one is served and another waits, reading stops.
"""

import asyncio
from collections import deque
from http import HTTPStatus
from typing import Any, Protocol

import httptools
import msgspec

MAX_PIPELINED = 16
"""Requests that wait on one connection before it is closed; reading stops long before a client gets there."""
HEAD_S = 20.0
"""How long a request's head may take to come, in seconds."""
BODY_S = 300.0
"""How long a whole request may take to come."""
IDLE_S = 75.0
"""How long a kept connection may be idle."""
LINGER_S = 2.0
"""How long a refused client may go on sending before its connection is closed, so that it can read why."""
REASONS = {status.value: status.phrase for status in HTTPStatus}


class Incoming(msgspec.Struct):
    """One request, whole."""

    method: str
    path: str
    query: str
    headers: dict[bytes, bytes]
    """By lower-case name; of a repeated one the last."""
    body: bytes
    keep_alive: bool
    http10: bool
    arrived_t: float
    """When its first byte came, on the loop's clock."""


class App(Protocol):
    """What a listener serves."""

    max_body: int
    max_head: int
    connections: set["Connection"]

    def handle(self, connection: "Connection", request: Incoming) -> None:
        """Answer, now or later; exactly one answer a request."""


class Serving(Protocol):
    """What a connection tells whoever answers its request."""

    def client_gone(self) -> None:
        """The client closed the connection."""

    def client_slow(self, slow: bool) -> None:
        """The client reads too slowly (True), or again (False)."""


class Connection(asyncio.Protocol):
    """One client connection."""

    __slots__ = (
        "_body", "_broken", "_busy", "_continue", "_head_size", "_headers", "_idle_t", "_in_head", "_no_body",
        "_parser", "_progress", "_reading", "_refusal", "_url", "_waiting", "_without_progress", "app", "closing",
        "http10", "keep_alive", "loop", "serving", "slow", "t0", "transport",
    )  # fmt: skip

    def __init__(self, app: App, loop: asyncio.AbstractEventLoop) -> None:
        self.app = app
        self.loop = loop
        self.transport: Any = None
        self.serving: Serving | None = None
        self.slow = False
        self.keep_alive = True
        self.http10 = False
        self.closing = False
        self.t0 = 0.0
        self._parser: Any = httptools.HttpRequestParser(self)
        self._waiting: deque[Incoming] = deque()
        self._busy = False
        self._reading = True
        self._broken = False
        """Nothing more is read: where the next request would begin is unknown."""
        self._refusal: tuple[int, bytes] | None = None
        """What is answered after the requests that came before the broken one."""
        self._in_head = False
        self._continue = False
        self._no_body = False
        self._progress = False
        """Whether the present read ended a head, held a part of a body, or ended a request."""
        self._without_progress = 0
        """Bytes of whole reads that did none of these: a header, a trailer or an extension without end."""
        self._head_size = 0
        """Bytes of the present request's header and trailer lines."""
        self._idle_t = loop.time()
        self._headers: dict[bytes, bytes] = {}
        self._url = b""
        self._body: bytes | bytearray = b""

    # Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected."""
        self.transport = transport
        self.app.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone: whoever answers it stops at once."""
        self.transport = self._parser = None  # the parser holds this connection: a cycle
        self.app.connections.discard(self)
        self._waiting.clear()
        serving, self.serving = self.serving, None
        if serving is not None:
            serving.client_gone()

    def pause_writing(self) -> None:
        """The client reads slowly."""
        self.slow = True
        if self.serving is not None:
            self.serving.client_slow(True)

    def resume_writing(self) -> None:
        """The client caught up."""
        self.slow = False
        if self.serving is not None:
            self.serving.client_slow(False)

    def data_received(self, data: bytes) -> None:
        """Bytes from the client."""
        if self._broken or self._parser is None:
            return
        self._progress = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            if not isinstance(cause, _BadRequestError):
                raise
            self._refuse(cause.status, cause.message)
            return
        except httptools.HttpParserError as error:
            self._refuse(400, f"malformed HTTP: {error}")
            return
        self._without_progress = 0 if self._progress else self._without_progress + len(data)
        if self._without_progress > self.app.max_head:
            self._refuse(431, f"the request head is longer than {self.app.max_head} bytes")
        elif self._waiting and self._reading and self.transport is not None:
            self._reading = False
            self.transport.pause_reading()

    # httptools callbacks

    def on_message_begin(self) -> None:
        """A request begins."""
        self._in_head, self._head_size, self.t0 = True, 0, self.loop.time()
        self._headers, self._url, self._body = {}, b"", b""

    def on_url(self, url: bytes) -> None:
        """A part of the target."""
        self._url += url
        self._measure_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self._measure_head(len(name) + len(value) + 4)
        if not self._in_head:  # a trailer must not pass for a header
            return
        name = name.lower()
        if name in self._headers and name in (b"content-length", b"transfer-encoding", b"host"):
            raise _BadRequestError(400, f"{name.decode('latin1')} stands twice")
        if b"\r" in value or b"\n" in value or b"\0" in value:
            raise _BadRequestError(400, "a header value holds a control character")
        self._headers[name] = value

    def _measure_head(self, size: int) -> None:
        self._head_size += size
        if self._head_size > self.app.max_head:
            raise _BadRequestError(431, f"the request head is longer than {self.app.max_head} bytes")

    def on_headers_complete(self) -> None:
        """The head is whole: refuse what can be refused before the body."""
        headers = self._headers
        self._in_head, self._progress = False, True
        version = self._parser.get_http_version()
        if version not in ("1.0", "1.1"):
            raise _BadRequestError(505, f"HTTP/{version} is not served")
        if self._parser.should_upgrade():  # httptools would take its body for the other protocol
            raise _BadRequestError(400, "protocol upgrades are not served")
        if version == "1.1" and b"host" not in headers:
            raise _BadRequestError(400, "the Host header is missing")
        encoding = headers.get(b"transfer-encoding")
        if encoding is not None and (
            b"content-length" in headers or encoding.strip().lower() != b"chunked" or version == "1.0"
        ):
            raise _BadRequestError(
                400, "Transfer-Encoding other than chunked, together with Content-Length, or in HTTP/1.0"
            )
        length = int(headers.get(b"content-length", b"0"))
        if length > self.app.max_body:
            raise _BadRequestError(413, f"the body is longer than {self.app.max_body} bytes")
        expect = headers.get(b"expect")
        if expect is not None:
            if expect.strip().lower() != b"100-continue":
                raise _BadRequestError(417, "only `Expect: 100-continue` is served")
            self._continue = version == "1.1"
            self._go_on()

    def _go_on(self) -> None:
        """Ask for the body that a client holds back, once the answers before it are out."""
        if self._continue and not self._busy and self.transport is not None:
            self._continue = False
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        """A part of the body."""
        self._progress = True
        if len(self._body) + len(data) > self.app.max_body:
            raise _BadRequestError(413, f"the body is longer than {self.app.max_body} bytes")
        if not self._body:
            self._body = data
        elif isinstance(self._body, bytes):  # many small chunks must not cost an object each
            self._body = bytearray(self._body) + data
        else:
            self._body += data

    def on_message_complete(self) -> None:
        """A request is whole: serve it, or let it wait for the one before."""
        self._progress = True
        path, query = _target(self._url)
        http10 = self._parser.get_http_version() == "1.0"
        request = Incoming(
            self._parser.get_method().decode("latin1"),
            path,
            query,
            self._headers,
            bytes(self._body),
            self._parser.should_keep_alive() and not http10,
            http10,
            self.t0,
        )
        self._body = b""
        self.t0 = 0.0
        self._continue = False
        if self._busy:
            if len(self._waiting) >= MAX_PIPELINED:
                raise _BadRequestError(400, f"more than {MAX_PIPELINED} pipelined requests")
            self._waiting.append(request)
        else:
            self._serve(request)

    # Serving

    def _serve(self, request: Incoming) -> None:
        self._busy = True
        self.keep_alive = request.keep_alive and not self.closing
        self.http10 = request.http10
        self._no_body = request.method == "HEAD"
        self.app.handle(self, request)

    def _refuse(self, status: int, message: str) -> None:
        """Answer what is not HTTP, after the answers to what came before it, and close."""
        self._broken, self._refusal = True, (status, error_body(status, message))
        if not self._busy and self.transport is not None:
            self._say_refusal()

    def _say_refusal(self) -> None:
        assert self._refusal is not None
        status, body = self._refusal
        self.transport.write(head(status, b"application/json", b"", len(body), False) + body)
        self._read_on()
        self._linger()

    def respond(self, status: int, body: bytes, *, kind: bytes = b"application/json", headers: bytes = b"") -> None:
        """Answer with a body, and go on to the next request."""
        if self.transport is None:
            return
        start = head(status, kind, headers, len(body), self.keep_alive and not self.closing)
        self.transport.write(start if self._no_body else start + body)
        self.finished()

    def finished(self) -> None:
        """The answer is written; serve what waits, or read on, or close."""
        self.serving = None
        self._busy = False
        if self.transport is None:
            return
        if not self.keep_alive or self.closing:
            self.transport.close()
            return
        self._idle_t = self.loop.time()
        if self._waiting:
            self._serve(self._waiting.popleft())
        elif self._refusal is not None:
            self._say_refusal()
        else:
            self._go_on()
        if not self._waiting:
            self._read_on()

    def _read_on(self) -> None:
        if not self._reading and self.transport is not None:
            self._reading = True
            self.transport.resume_reading()

    def _linger(self) -> None:
        """Closing while a client still sends would reset the connection before it has read the answer."""
        transport = self.transport
        if transport.can_write_eof():
            transport.write_eof()
            self.loop.call_later(LINGER_S, transport.close)
        else:
            transport.close()

    def check_time(self, now: float) -> None:
        """Close what came too slowly or has been idle for too long."""
        if self._busy or self._broken or self.transport is None:
            return
        if self.t0 and now - self.t0 > (HEAD_S if self._in_head else BODY_S):
            self._refuse(408, "the request came too slowly")
        elif not self.t0 and now - self._idle_t > IDLE_S:
            self.transport.close()

    def shut(self) -> None:
        """Close when the present answer is out; at once when there is none."""
        self.closing = True
        self.keep_alive = False
        if not self._busy and self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self.transport is not None:
            self.transport.abort()


def _target(url: bytes) -> tuple[str, str]:
    """Path and query of a request's target, which a proxy's client may have sent with its host."""
    if url[:7].lower() == b"http://":
        url = url[7:]
        url = url[max(url.find(b"/"), 0) :]
    path, _, query = url.decode("latin1").partition("?")
    return path, query


class _BadRequestError(Exception):
    """A request that is refused while it is read."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


def head(status: int, kind: bytes, headers: bytes, length: int, keep_alive: bool) -> bytes:
    """A response head; `headers` are whole lines with their CRLF."""
    return b"HTTP/1.1 %d %s\r\ncontent-type: %s\r\ncontent-length: %d\r\n%s%s\r\n" % (
        status,
        REASONS.get(status, "Status").encode(),
        kind,
        length,
        headers,
        b"" if keep_alive else b"connection: close\r\n",
    )


def error_body(
    status: int, message: str, *, kind: str = "", param: str | None = None, code: str | None = None
) -> bytes:
    """An error as OpenAI's clients read it: `{"error": {message, type, param, code}}`."""
    kind = kind or _KINDS.get(status, "InternalServerError" if status >= 500 else "BadRequestError")
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": param, "code": code or status}})


_KINDS = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    405: "MethodNotAllowed",
    429: "RateLimitError",
    503: "ServiceUnavailableError",
    504: "TimeoutError",
}
