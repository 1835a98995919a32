"""One HTTP request to an engine, its answer dated as it comes."""

import asyncio
import re
import ssl
import time
from dataclasses import dataclass, field
from typing import Any, Literal, cast
from urllib.parse import urlsplit

import httptools
import msgspec

_TOKENS = re.compile(rb'"completion_tokens": ?(\d+)')
_ERROR = re.compile(rb'^data: ?\{"error"', re.MULTILINE)


Cause = Literal["refused", "timeout", "status", "other"]


class EngineError(Exception):
    """An engine that did not answer as asked; the message names it and says what came."""

    def __init__(self, message: str, cause: Cause = "other", status: int = 0) -> None:
        super().__init__(message)
        self.status = status
        """HTTP status of its answer, where that is the failure; else 0."""
        self.cause: Cause = cause
        """What kind of failure it is: nobody listens, no answer in time, a status other than 200, or another."""


@dataclass(frozen=True, slots=True)
class EngineUrl:
    """How an engine is reached."""

    id: str
    url: str
    """Base URL, without a trailing slash."""
    api_key: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    server_name: str | None = None
    """Name in its certificate; None: the host of its URL."""


@dataclass(slots=True)
class Answer:
    """What came back. Times are of `time.perf_counter`."""

    sent_t: float
    status: int
    body: bytes
    """The whole body, a stream's events too."""
    times_t: list[float]
    """When reads of a stream came in which the count of tokens rose."""
    tokens: list[int]
    """How many tokens had come by then, as the usage in the frames says."""


class _Stream(asyncio.Protocol):
    def __init__(self, request: bytes, *, streamed: bool) -> None:
        self._request = request
        self._streamed = streamed
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []
        self._tail = b""
        self._count = 0
        self._transport: asyncio.Transport | None = None
        self.answer = Answer(0.0, 0, b"", [], [])
        self.future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.answer.sent_t = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"its answer is not HTTP: {error}")

    def on_headers_complete(self) -> None:
        self.answer.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self._body.append(body)
        if not self._streamed or self.answer.status != 200:
            return
        text = self._tail + body
        self._tail = text[-64:]  # a count that is split over two reads is found whole in the second
        if _ERROR.search(text):
            self._fail("it reports an error in the stream: " + text[:300].decode("utf-8", "replace"))
            return
        told = _TOKENS.findall(text)
        count = int(told[-1]) if told else 0
        if count > self._count:
            self._count = count
            self.answer.times_t.append(time.perf_counter())
            self.answer.tokens.append(count)

    def on_message_complete(self) -> None:
        self.answer.body = b"".join(self._body)
        if not self.future.done():
            self.future.set_result(self.answer)
        self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"it closed the connection: {exc or 'before the end of its answer'}")

    def _fail(self, message: str) -> None:
        if not self.future.done():
            self.future.set_exception(EngineError(message))
        self.close()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


async def ask(engine: EngineUrl, path: str, body: dict[str, Any] | None = None, *, timeout_s: float = 120.0) -> Answer:
    """GET a page, or POST a JSON `body`, on a connection of its own.

    A body with `stream` is dated frame by frame and must ask for continuous usage. Raises `EngineError` when no
    whole answer comes in `timeout_s`, and for a status other than 200.
    """
    parts = urlsplit(engine.url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    streamed = bool(body and body.get("stream"))
    protocol = _Stream(_request(engine, parts.netloc, path, body), streamed=streamed)
    context = (engine.tls or ssl.create_default_context()) if parts.scheme == "https" else None
    name = engine.server_name if context else None
    try:
        async with asyncio.timeout(timeout_s):
            await asyncio.get_running_loop().create_connection(
                lambda: protocol, host, port, ssl=context, server_hostname=name
            )
            answer = await protocol.future
    except TimeoutError:
        raise EngineError(f"{engine.id}: no whole answer on {path} within {timeout_s:g} s", "timeout") from None
    except OSError as error:
        cause: Cause = "refused" if isinstance(error, ConnectionRefusedError) else "other"
        raise EngineError(f"{engine.id}: cannot reach it: {error.strerror or error}", cause) from error
    except EngineError as error:
        raise EngineError(f"{engine.id}: {path}: {error}") from None
    finally:
        protocol.close()
    if answer.status != 200:
        text = answer.body[:300].decode("utf-8", "replace")
        raise EngineError(f"{engine.id}: {path}: status {answer.status}: {text}", "status", answer.status)
    return answer


def _request(engine: EngineUrl, netloc: str, path: str, body: dict[str, Any] | None) -> bytes:
    key = f"authorization: Bearer {engine.api_key}\r\n" if engine.api_key else ""
    if body is None:
        return f"GET {path} HTTP/1.1\r\nhost: {netloc}\r\n{key}connection: close\r\n\r\n".encode()
    data = msgspec.json.encode(body)
    head = f"POST {path} HTTP/1.1\r\nhost: {netloc}\r\n{key}content-type: application/json\r\nconnection: close\r\n"
    return head.encode() + b"content-length: %d\r\n\r\n" % len(data) + data
