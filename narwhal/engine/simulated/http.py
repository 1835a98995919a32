"""HTTP/1.1 as uvicorn speaks it: one protocol object for each connection, one request at a time, no framework."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Protocol, cast

import httptools

_MAX_BODY_BYTES = 64 << 20
_HIGH_WATER_BYTES = 65536
_REASONS = {status.value: status.phrase for status in HTTPStatus}


@dataclass(slots=True)
class HttpRequest:
    """A request, read to its end."""

    method: str = ""
    path: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    """By lower-case name."""
    body: bytes = b""
    keep_alive: bool = True


class Client(Protocol):
    """What a request that is being answered hears from its connection."""

    def resume(self) -> None:
        """The reader has caught up."""

    def abandon(self) -> None:
        """The reader is gone."""


class Connection(asyncio.Protocol):
    """One client. It is also the `answer.Reader` of the request that it carries."""

    def __init__(
        self,
        handle: "Callable[[Connection, HttpRequest], None]",
        connections: "set[Connection]",
        keep_alive_s: float,
    ) -> None:
        self._handle = handle
        self._connections = connections
        self._keep_alive_s = keep_alive_s
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._reading = HttpRequest()
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._url = b""
        self._queue: deque[HttpRequest] = deque()
        self._current: HttpRequest | None = None
        self._idle: asyncio.TimerHandle | None = None
        self.lost: asyncio.Future[None] = self._loop.create_future()
        """Done when the connection is gone."""
        self.client: Client | None = None
        """Whoever answers the current request over some time."""
        self.extra_headers = b""
        """Header lines for the current answer."""
        self.lags = False
        """Whether the client reads more slowly than it is sent to."""

    @property
    def closed(self) -> bool:
        """Whether the client is gone."""
        return self._transport is None

    # --- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client came."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self._transport.set_write_buffer_limits(high=_HIGH_WATER_BYTES)
        self._connections.add(self)
        self._start_idle()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone: whatever it waited for ends."""
        self._transport = None
        self._connections.discard(self)
        self.lost.set_result(None)
        self._stop_idle()
        client, self.client = self.client, None
        if client is not None:
            client.abandon()

    def pause_writing(self) -> None:
        """The client lags."""
        self.lags = True

    def resume_writing(self) -> None:
        """The client has caught up."""
        self.lags = False
        if self.client is not None:
            self.client.resume()

    def data_received(self, data: bytes) -> None:
        """Parse what came."""
        self._stop_idle()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._reject(b"Upgrade is not supported.")
        except httptools.HttpParserError:
            self._reject(b"Invalid HTTP request received.")

    # --- httptools

    def on_message_begin(self) -> None:
        """A request begins."""
        self._reading = HttpRequest()
        self._body = []
        self._body_bytes = 0
        self._url = b""

    def on_url(self, url: bytes) -> None:
        """A part of its target."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header line."""
        self._reading.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """The head is complete."""
        if self._reading.headers.get("expect", "").lower() == "100-continue":
            self._write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        """A part of the body."""
        self._body_bytes += len(data)
        if self._body_bytes > _MAX_BODY_BYTES:
            self.cut()
            return
        self._body.append(data)

    def on_message_complete(self) -> None:
        """The request is complete: answer it when those before it are answered."""
        request = self._reading
        request.method = self._parser.get_method().decode("latin-1")
        path = httptools.parse_url(self._url).path
        request.path = path.decode("latin-1") if path else "/"
        request.keep_alive = self._parser.should_keep_alive()
        request.body = b"".join(self._body)
        self._body = []
        self._queue.append(request)
        self._next()

    # --- answers

    def reply(self, status: int, body: bytes, content_type: bytes = b"application/json") -> None:
        """Send a whole answer."""
        kind = b"content-type: " + content_type + b"\r\n" if body else b""
        head = self._head(status) + kind + b"content-length: %d\r\n\r\n" % len(body)
        self._write(head + body)
        self._end()

    def begin_stream(self) -> None:
        """Send the head of a stream of events."""
        kind = b"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
        self._write(self._head(200) + kind)

    def send_event(self, data: bytes) -> None:
        """Send one event, as one chunk."""
        self._write(b"%x\r\n%s\r\n" % (len(data), data))

    def end_stream(self) -> None:
        """End the stream."""
        self._write(b"0\r\n\r\n")
        self._end()

    def close(self) -> None:
        """End the connection when everything written is out."""
        if self._transport is not None:
            self._transport.close()

    def cut(self) -> None:
        """Break the connection."""
        if self._transport is not None:
            self._transport.abort()

    def _head(self, status: int) -> bytes:
        reason = _REASONS.get(status, "Unknown").encode()
        line = b"HTTP/1.1 %d %s\r\ndate: %s\r\nserver: uvicorn\r\n" % (status, reason, _date())
        close = b"" if self._current is None or self._current.keep_alive else b"connection: close\r\n"
        return line + close + self.extra_headers

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def _end(self) -> None:
        """The current answer is complete."""
        self.client = None
        self.extra_headers = b""
        current, self._current = self._current, None
        if self._transport is None:
            return
        if current is not None and not current.keep_alive:
            self._transport.close()
        elif self._queue:
            self._loop.call_soon(self._next)
        else:
            self._start_idle()

    def _next(self) -> None:
        if self._current is None and self._queue and self._transport is not None:
            self._current = self._queue.popleft()
            self._handle(self, self._current)

    def _reject(self, text: bytes) -> None:
        self._write(
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\n"
            b"content-length: %d\r\n\r\n%s" % (len(text), text)
        )
        if self._transport is not None:
            self._transport.close()

    def _start_idle(self) -> None:
        if self._transport is not None:
            self._idle = self._loop.call_later(self._keep_alive_s, self._transport.close)

    def _stop_idle(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None


_dated: tuple[int, bytes] = (0, b"")


def _date() -> bytes:
    """The time as HTTP writes it, made once a second."""
    global _dated
    now_s = int(time.time())
    if _dated[0] != now_s:
        _dated = (now_s, time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(now_s)).encode())
    return _dated[1]
