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
_BODY_METHODS = (b"POST", b"PUT", b"PATCH")
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
        "_body", "_body_size", "_broken", "_busy", "_continue", "_head_size", "_headers", "_in_head", "_parser",
        "_reading", "_url", "_waiting", "app", "closing", "http10", "keep_alive", "loop", "serving", "slow", "t0",
        "transport",
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
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: deque[Incoming] = deque()
        self._busy = False
        self._reading = True
        self._broken = False
        self._in_head = False
        self._continue = False
        self._head_size = 0
        self._headers: dict[bytes, bytes] = {}
        self._url = b""
        self._body: list[bytes] = []
        self._body_size = 0

    # Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected."""
        self.transport = transport
        self.app.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone: whoever answers it stops at once."""
        self.transport = None
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
        if self._broken:
            return
        if self._in_head or not self._busy:
            self._head_size += len(data)
        if not self.t0:
            self.t0 = self.loop.time()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse(400, "protocol upgrades are not served")
            return
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            if isinstance(cause, _BadRequestError):
                self._refuse(cause.status, cause.message)
            else:
                raise
            return
        except httptools.HttpParserError as error:
            self._refuse(400, f"malformed HTTP: {error}")
            return
        if self._in_head and self._head_size > self.app.max_head:
            self._refuse(431, f"the request head is longer than {self.app.max_head} bytes")
        elif self._waiting and self._reading and self.transport is not None:
            self._reading = False
            self.transport.pause_reading()

    # httptools callbacks

    def on_message_begin(self) -> None:
        """A request begins."""
        self._in_head, self._continue = True, False
        self._headers, self._url, self._body, self._body_size = {}, b"", [], 0

    def on_url(self, url: bytes) -> None:
        """A part of the target."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        name = name.lower()
        if name in self._headers and name in (b"content-length", b"transfer-encoding", b"host"):
            raise _BadRequestError(400, f"{name.decode('latin1')} stands twice")
        if b"\r" in value or b"\n" in value or b"\0" in value:
            raise _BadRequestError(400, "a header value holds a control character")
        self._headers[name] = value

    def on_headers_complete(self) -> None:
        """The head is whole: refuse what can be refused before the body."""
        headers = self._headers
        self._in_head, head_size, self._head_size = False, self._head_size, 0
        version = self._parser.get_http_version()
        if version not in ("1.0", "1.1"):
            raise _BadRequestError(505, f"HTTP/{version} is not served")
        if version == "1.1" and b"host" not in headers:
            raise _BadRequestError(400, "the Host header is missing")
        if head_size > self.app.max_head + self.app.max_body:
            raise _BadRequestError(431, "the request head is too long")
        encoding = headers.get(b"transfer-encoding")
        if encoding is not None and (b"content-length" in headers or encoding.strip().lower() != b"chunked"):
            raise _BadRequestError(400, "Transfer-Encoding other than chunked, or together with Content-Length")
        length = int(headers.get(b"content-length", b"0"))
        if length > self.app.max_body:
            raise _BadRequestError(413, f"the body is longer than {self.app.max_body} bytes")
        expect = headers.get(b"expect")
        if expect is not None:
            if expect.strip().lower() != b"100-continue":
                raise _BadRequestError(417, "only `Expect: 100-continue` is served")
            if not self._busy and self.transport is not None:
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        """A part of the body."""
        self._body_size += len(data)
        if self._body_size > self.app.max_body:
            raise _BadRequestError(413, f"the body is longer than {self.app.max_body} bytes")
        self._body.append(data)

    def on_message_complete(self) -> None:
        """A request is whole: serve it, or let it wait for the one before."""
        parts = self._body
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        path, _, query = self._url.decode("latin1").partition("?")
        request = Incoming(
            self._parser.get_method().decode("latin1"),
            path,
            query,
            self._headers,
            body,
            self._parser.should_keep_alive(),
            self._parser.get_http_version() == "1.0",
            self.t0,
        )
        self._body = []
        self.t0 = 0.0
        if self._busy:
            self._waiting.append(request)
            if len(self._waiting) > MAX_PIPELINED:
                raise _BadRequestError(400, "too many pipelined requests")
        else:
            self._serve(request)

    # Serving

    def _serve(self, request: Incoming) -> None:
        self._busy = True
        self.keep_alive = request.keep_alive and not self.closing
        self.http10 = request.http10
        self.app.handle(self, request)

    def _refuse(self, status: int, message: str) -> None:
        """Answer what is not HTTP, and close: where the next request would begin is unknown."""
        self._broken = True
        self._waiting.clear()
        if self.transport is None:
            return
        if self._busy:  # an answer is under way; it ends, then the connection closes
            self.keep_alive = False
            return
        self.keep_alive = False
        self.respond(status, error_body(status, message))

    def respond(self, status: int, body: bytes, *, kind: bytes = b"application/json", headers: bytes = b"") -> None:
        """Answer with a body, and go on to the next request."""
        if self.transport is None:
            return
        self.transport.write(head(status, kind, headers, len(body), self.keep_alive) + body)
        self.finished()

    def finished(self) -> None:
        """The answer is written; serve what waits, or read on, or close."""
        self.serving = None
        self._busy = False
        if self.transport is None:
            return
        if not self.keep_alive or self.closing or self._broken:
            self.transport.close()
            return
        if self._waiting:
            self._serve(self._waiting.popleft())
        if not self._waiting and not self._reading and self.transport is not None:
            self._reading = True
            self.transport.resume_reading()

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
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    405: "MethodNotAllowed",
    429: "RateLimitError",
    503: "ServiceUnavailableError",
    504: "TimeoutError",
}
