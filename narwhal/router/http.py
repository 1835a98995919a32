"""HTTP/1.1 towards clients: one protocol class for both listeners, with limits, pipelining and flow control.

httptools finds the messages; what it lets pass and must not pass is refused here. Requests of one connection are
served one after the other; reading goes on meanwhile, so that a client that leaves is noticed, until enough wait.
"""

import asyncio
from collections import deque
from typing import Any

import httptools

from narwhal.router.app import App
from narwhal.router.incoming import Incoming, KnownHead, Serving
from narwhal.router.replies import error_body, head, retry_after
from narwhal.router.syntax import ONCE, BadRequestError, check_head, split_target

MAX_PIPELINED = 16
"""Requests that wait on one connection before it is closed; reading stops at half of them."""
WAITING_BYTES = 65536
"""Bodies that wait on one connection before reading stops."""
SMALL_BODY = 65536
"""A body up to this size is read whatever its answer will be, so that the connection can be kept; others are judged by
their request's head first."""
HEAD_S = 20.0
"""How long a request's head may take to come, in seconds."""
BODY_S = 300.0
"""How long a whole request may take to come."""
IDLE_S = 75.0
"""How long a kept connection may be idle."""
SEND_S = 60.0
"""How long a client may read nothing of what waits for it, before its connection is cut."""
UNLIKE = 4
"""Reads in a row without the head before them, after which a connection's heads are no longer compared."""
LINGER_S = 2.0
"""How long a refused client may go on sending before its connection is closed, so that it can read why."""


class Connection(asyncio.Protocol):
    """One client connection."""

    __slots__ = (
        "_body", "_broken", "_busy", "_continue", "_head_size", "_headers", "_held", "_http10", "_idle_t", "_in_head",
        "_judging", "_known", "_max_head", "_method", "_no_body", "_parser", "_progress", "_read", "_reading",
        "_refusal", "_sent_t", "_served_size", "_unlike", "_unsent", "_url", "_waiting", "_without_progress", "app",
        "closing", "http10", "keep_alive", "loop", "serving", "slow", "t0", "transport",
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
        """Nothing more is read: the last request is here, or where the next would begin is unknown."""
        self._refusal: BadRequestError | None = None
        """What is answered after the requests that came before the broken one."""
        self._in_head = False
        self._continue = False
        self._judging = 0
        """Number by which `judged` is called for the present request; 0: it is not, or not any more."""
        self._no_body = False
        self._progress = False
        """Whether the present read ended a head, held a part of a body, or ended a request."""
        self._without_progress = 0
        """Bytes of whole reads that did none of these: a header, a trailer or an extension without end."""
        self._head_size = 0
        """Bytes of the present request's header and trailer lines."""
        self._idle_t = loop.time()
        self._sent_t, self._unsent = 0.0, 0
        """When the client last read, as far as `check_time` saw, and the bytes that it had still to read then."""
        self._max_head = app.max_head
        self._headers: dict[bytes, bytes] = {}
        self._method, self._url, self._http10 = b"", b"", False
        self._body: bytes | bytearray = b""
        self._held = 0
        """Bytes of bodies that this connection holds, as the app counts them."""
        self._served_size = 0
        """Those of them that are the body of the request which is being served."""
        self._known: KnownHead | None = None
        self._unlike, self._read = UNLIKE, b""
        """Reads in a row that did not begin with the known head; the present one, while its head may become that.

        The first is not remembered: streams of minutes are mostly their connection's only request.
        """

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
        self._release(self._held)
        serving, self.serving = self.serving, None
        if serving is not None:
            serving.client_gone()

    def eof_received(self) -> None:
        """The client sends no more. One that waits for an answer has left: the two cannot be told apart in time."""
        if self._busy and self.transport is not None:
            self.transport.abort()  # closing would wait until what nobody reads is read

    def pause_writing(self) -> None:
        """The client reads slowly."""
        self.slow = True
        self._sent_t, self._unsent = self.loop.time(), self.transport.get_write_buffer_size()
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
        if not self.t0 and not self._busy and self._unlike < UNLIKE:
            if self._known is not None and self._asks_again(self._known, data):
                return
            self._read = data  # its head may become the known one
        self._progress = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._parsing_failed(error)
            return
        finally:
            self._read = b""
        self._without_progress = 0 if self._progress else self._without_progress + len(data)
        if self._without_progress > self.app.max_head:
            self._refuse(BadRequestError(431, f"the request head is longer than {self.app.max_head} bytes"))
        elif self._waiting and self._reading and self.transport is not None and self._enough_wait():
            self._reading = False
            self.transport.pause_reading()

    def _asks_again(self, known: KnownHead, data: bytes) -> bool:
        """Serve a read that is one whole request with the head of the last one; False: it is something else."""
        app = self.app
        room = min(SMALL_BODY, app.max_body, app.max_buffered - app.buffered)
        request = known.again(data, room, self.loop.time())
        self._unlike = 0 if request is not None else self._unlike + 1
        if request is None:
            return False
        app.buffered += len(request.body)
        self._held += len(request.body)
        self._serve(request)
        return True

    def _parsing_failed(self, error: httptools.HttpParserError) -> None:
        if self._broken:  # the last request is here; what follows it is nobody's
            return
        if not isinstance(error, httptools.HttpParserCallbackError):
            self._refuse(BadRequestError(400, f"malformed HTTP: {error}"))
        elif isinstance(error.__context__, BadRequestError):
            self._refuse(error.__context__)
        else:
            raise error

    def _enough_wait(self) -> bool:
        return (
            len(self._waiting) >= MAX_PIPELINED // 2
            or sum(len(request.body) for request in self._waiting) >= WAITING_BYTES
        )

    # httptools callbacks

    def on_message_begin(self) -> None:
        """A request begins."""
        if self._broken:
            raise BadRequestError(400, "a request follows the last one")
        self._in_head, self._head_size, self.t0 = True, 0, self.loop.time()
        self._headers, self._url, self._body = {}, b"", b""

    def on_url(self, url: bytes) -> None:
        """A part of the target."""
        self._url += url
        self._head_size += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header or trailer line; called for each, so all that can be is done once for all of them."""
        self._head_size += len(name) + len(value) + 4
        if self._head_size > self._max_head:
            raise BadRequestError(431, f"the request head is longer than {self._max_head} bytes")
        if not self._in_head:  # a trailer must not pass for a header
            return
        name, headers = name.lower(), self._headers
        if name in headers and name in ONCE:
            raise BadRequestError(400, f"{name.decode('latin1')} stands twice")
        headers[name] = value

    def on_headers_complete(self) -> None:
        """The head is whole: refuse what can be refused before the body."""
        self._in_head, self._progress = False, True
        parser, headers = self._parser, self._headers
        method, version = parser.get_method(), parser.get_http_version()
        if parser.should_upgrade():  # httptools would take its body for the other protocol
            raise BadRequestError(400, "protocol upgrades are not served")
        length = check_head(method, version, headers, self.app.max_body)
        self._method, self._http10 = method, version == "1.0"
        if length > SMALL_BODY or length < 0 or b"expect" in headers:
            self._judging = self.app.judge(self, method, split_target(self._url)[0], headers, length)
            self._check_room(length)
        if b"expect" in headers:
            self._continue = version == "1.1"
            self._go_on()

    def _go_on(self) -> None:
        """Ask for the body that a client holds back, once the answers before it are out."""
        if self._continue and not self._busy and not self._judging and self.transport is not None:
            self._continue = False
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def judged(self, number: int, refusal: BadRequestError | None) -> None:
        """What came of a request by its head; nothing follows for one that is whole by now, and judged as such."""
        if number != self._judging or self._broken or self.transport is None:
            return
        self._judging = 0
        if refusal is not None:
            self._refuse(refusal)
        else:
            self._go_on()

    def on_body(self, data: bytes) -> None:
        """A part of the body."""
        self._progress = True
        app, size = self.app, len(data)
        if len(self._body) + size > app.max_body:
            raise BadRequestError(413, f"the body is longer than {app.max_body} bytes")
        if app.buffered + size > app.max_buffered:
            self._check_room(size)
        app.buffered += size
        self._held += size
        if not self._body:
            self._body = data
        elif isinstance(self._body, bytes):  # many small chunks must not cost an object each
            self._body = bytearray(self._body) + data
        else:
            self._body += data

    def _check_room(self, size: int) -> None:
        """Refuse a body that the memory for bodies has no room for."""
        if self.app.buffered + size > self.app.max_buffered:
            text = "the router holds as many bytes of requests as it may; try again"
            raise BadRequestError(503, text, code="buffer_full", headers=retry_after(1.0))

    def _release(self, size: int) -> None:
        """Bodies of this size are needed no more."""
        self.app.buffered -= size
        self._held -= size

    def forget_body(self) -> None:
        """The body of the request that is being served is needed no more."""
        self._release(self._served_size)
        self._served_size = 0

    def on_message_complete(self) -> None:
        """A request is whole: serve it, or let it wait for the one before."""
        self._progress = True
        path, query = split_target(self._url)
        http10 = self._http10
        keep_alive = not http10 and self._parser.should_keep_alive()
        method, body = self._method.decode("latin1"), bytes(self._body)
        request = Incoming(method, path, query, self._headers, body, keep_alive, http10, self.t0)
        if self._read:
            self._known = KnownHead.of(self._read, request)
        self._body = b""
        self.t0 = 0.0
        self._continue = False
        self._judging = 0
        self._broken = not request.keep_alive
        if self._busy:
            if len(self._waiting) >= MAX_PIPELINED:
                raise BadRequestError(400, f"more than {MAX_PIPELINED} pipelined requests")
            self._waiting.append(request)
        else:
            self._serve(request)

    # Serving

    def _serve(self, request: Incoming) -> None:
        self._busy = True
        self._served_size = len(request.body)
        self.keep_alive = request.keep_alive and not self.closing
        self.http10 = request.http10
        self._no_body = request.method == "HEAD"
        self.app.handle(self, request)

    def _refuse(self, refusal: BadRequestError) -> None:
        """Answer what is not HTTP or is not let in, after the answers to what came before it, and close."""
        self._broken, self._refusal = True, refusal
        self._release(len(self._body))
        self._body = b""
        self.app.refused(refusal.code or str(refusal.status))
        if not self._busy and self.transport is not None:
            self._say_refusal()

    def _say_refusal(self) -> None:
        refusal = self._refusal
        assert refusal is not None
        body = error_body(refusal.status, refusal.message, code=refusal.code)
        self.transport.write(head(refusal.status, b"application/json", refusal.headers, len(body), False) + body)
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
        self.forget_body()
        if not self.keep_alive or self.closing:
            self.transport.close()
            return
        self._idle_t = self.loop.time()
        if self._known is None:
            self._unlike = 0
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

    def check_time(self, now: float) -> None:
        """Close what came too slowly, has been idle for too long, or does not read its answer."""
        if self.transport is not None and (self.slow or self.transport.is_closing()):
            self._check_reading(now)
        if self._busy or self._broken or self.transport is None:
            return
        if self.t0 and now - self.t0 > (HEAD_S if self._in_head else BODY_S):
            self._refuse(BadRequestError(408, "the request came too slowly"))
        elif not self.t0 and now - self._idle_t > IDLE_S:
            self.transport.close()

    def _check_reading(self, now: float) -> None:
        """Cut a client that reads nothing; while it is slow, or the connection closing, nothing is added."""
        unsent = self.transport.get_write_buffer_size()
        if unsent < self._unsent or self._sent_t == 0:
            self._sent_t = now
        self._unsent = unsent
        if now - self._sent_t > SEND_S:
            self.transport.abort()

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
