"""Connections to one engine: a pool, and a protocol that reads an answer whole or relays it."""

import asyncio
import logging
import math
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from narwhal.control.events import FailureCause
from narwhal.engine.dialect import ERROR_EVENT
from narwhal.router.answers import read_head
from narwhal.router.chunks import END_OF_EVENT, KEY, STEPS, TAIL, ChunkError, ChunkTracker, dechunk

log = logging.getLogger("narwhal.router")
IDLE_S = 4.0
"""Idle age after which a kept connection is not used again: engines close theirs after 5 s."""
CONNECT_S = 2.0
"""Engines are one switch away; leg 2 must not come long after half the lease."""
MAX_HEAD = 65536
MAX_ANSWER = 64 << 20
"""Largest answer that is read whole, in bytes."""

_IDLE, _HEAD, _LENGTH, _CHUNKED, _CLOSE = range(5)


class Owner(Protocol):
    """Who asked: the exchange of one request."""

    def answer_head(self, up: "Upstream", status: int, length: int) -> bool:
        """The head is here (`length` -1: chunked, -2: until the connection closes). True: relay; False: collect."""

    def answer_bytes(self, up: "Upstream", data: bytes) -> None:
        """Bytes of a relayed body, framing included."""

    def answer_done(self, up: "Upstream", body: bytes) -> None:
        """The answer is complete; `body` when it was collected, without framing."""

    def answer_failed(self, up: "Upstream", cause: FailureCause, message: str) -> None:
        """It ended before it was complete. `cause` as in `FailureCause`."""

    def replaced(self, old: "Upstream", new: "Upstream") -> None:
        """The kept connection had been closed by the engine; the request went out again on a new one."""


class Pool:
    """Connections to one engine."""

    __slots__ = (
        "_post_heads", "address", "closed", "distrusted", "headers", "idle", "loop", "open", "port", "secure",
    )  # fmt: skip

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        address: str,
        port: int,
        *,
        api_key: str = "",
        secure: tuple[ssl.SSLContext, str] | None = None,
    ) -> None:
        self.loop = loop
        self.address = address
        self.port = port
        host = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        key = f"authorization: Bearer {api_key}\r\n" if api_key else ""
        self.headers = f"host: {host}\r\n{key}".encode()
        """Header lines that every request of this engine begins with."""
        self._post_heads: dict[str, bytes] = {}
        self.secure = secure
        """TLS to the engine, and the name that its certificate must bear; None: plain HTTP."""
        self.idle: deque[Upstream] = deque()
        self.open: set[Upstream] = set()
        self.closed = False
        self.distrusted = False

    def post_head(self, route: str) -> bytes:
        """How a POST to this engine begins, up to its request id."""
        head = self._post_heads.get(route)
        if head is None:
            head = b"POST %s HTTP/1.1\r\n%scontent-type: application/json\r\nx-request-id: " % (
                route.encode(),
                self.headers,
            )
            self._post_heads[route] = head
        return head

    def send(self, request: bytes, owner: Owner, *, once: bool = False, until: float = math.inf) -> "Upstream":
        """Send a request on a kept connection, or a new one.

        `once`: never send it a second time. `until`: do not send it later than this on the loop's clock.
        """
        idle = self.idle
        while idle:
            up = idle.pop()
            if up.usable(self.loop.time()):
                up.begin(request, owner, again=not once)
                return up
            up.abort()
        return self.connect(request, owner, until)

    def connect(self, request: bytes, owner: Owner, until: float = math.inf) -> "Upstream":
        """Send a request on a new connection."""
        up = Upstream(self)
        up.queue(request, owner, until)
        up.task = self.loop.create_task(up.open())
        return up

    def prune(self) -> None:
        """Close what has been idle for too long; the oldest stand first."""
        now = self.loop.time()
        while self.idle and not self.idle[0].usable(now):
            self.idle.popleft().abort()

    def tell(self, error: OSError) -> None:
        """Log once that the engine's certificate is refused: the probes alone would say it each second."""
        if isinstance(error, ssl.SSLCertVerificationError) and not self.distrusted:
            self.distrusted = True
            log.error(
                "an engine on port %d shows a certificate that is not trusted (engines.tls): %s",
                *(self.port, error.verify_message),
            )

    def close(self) -> None:
        """Close every connection."""
        self.closed = True
        for up in list(self.open):
            up.abort()
        self.idle.clear()


class Upstream(asyncio.Protocol):
    """One connection to an engine. One answer at a time."""

    __slots__ = (
        "_buffer", "_collect", "_collected", "_keep", "_left", "_paused", "_pending", "_state", "_until", "_used_t",
        "got", "owner", "pool", "refused", "sink", "status", "task", "tracker", "transport",
    )  # fmt: skip

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.owner: Owner | None = None
        self.transport: Any = None
        self.task: asyncio.Task[None] | None = None
        self.tracker: ChunkTracker | None = None
        self.sink: Callable[[bytes], None] | None = None
        """Where the next event of a relayed stream goes when it comes alone; None: to the owner, as all else does."""
        self.status = 0
        self.got = False
        """Whether a byte of the answer has come."""
        self.refused = False
        """Nobody listens there."""
        self._buffer = b""
        self._collect: list[bytes] | None = None
        self._collected = 0
        self._keep = True
        self._left = 0
        self._paused = False
        self._pending: bytes | None = None
        self._state = _IDLE
        self._until = math.inf
        self._used_t = 0.0

    # Sending

    def queue(self, request: bytes, owner: Owner, until: float) -> None:
        """Keep a request until the connection is made."""
        self._pending, self.owner, self._until = request, owner, until

    async def open(self) -> None:
        """Make the connection; a failure goes to the owner."""
        pool = self.pool
        context, name = pool.secure or (None, None)
        late = pool.loop.call_later(CONNECT_S, self._give_up)
        try:
            await pool.loop.create_connection(lambda: self, pool.address, pool.port, ssl=context, server_hostname=name)
        except OSError as error:
            pool.tell(error)
            self.refused = isinstance(error, ConnectionRefusedError)
            self._fail("connection", f"no connection: {error.strerror or error}")
        finally:
            late.cancel()

    def _give_up(self) -> None:
        """The time to connect is over. A connection that was made is kept: cancelling its task would close it."""
        if self.transport is None:
            self._fail("timeout", "no connection in time")
            self.abort()

    def begin(self, request: bytes, owner: Owner, *, again: bool) -> None:
        """Send a request on this connection; `again`: once more on a new one if this one proves to be closed."""
        self.owner, self.got, self._keep = owner, False, True
        self._pending = request if again else None
        self._state, self._buffer = _HEAD, b""
        self.transport.write(request)

    @property
    def ended(self) -> bool:
        """Whether the last chunk of a chunked answer is here."""
        return self.tracker is not None and self.tracker.done

    def usable(self, now: float) -> bool:
        """Whether it is open and young enough."""
        return self.transport is not None and now - self._used_t < IDLE_S

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send what waits."""
        self.transport = transport
        self.pool.open.add(self)
        if self._pending is None or self.owner is None or self.pool.closed:
            self.abort()
        elif self.pool.loop.time() > self._until:
            self._fail("handoff", "the handoff grew too old before the engine was reached")
            self.abort()
        else:
            self.begin(self._pending, self.owner, again=False)

    # Flow control and the end

    def pause(self) -> None:
        """Stop reading: the client is slow."""
        if self.transport is not None and not self._paused:
            self._paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        if self._paused:
            self._paused = False
            if self.transport is not None:
                self.transport.resume_reading()

    def abort(self) -> None:
        """Close at once; the owner hears nothing more. The engine stops working for it."""
        self.owner = self.sink = None
        self._pending = None
        if self.transport is not None:
            self.transport.abort()
        elif self.task is not None:
            self.task.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        """The engine closed, or we did."""
        self.transport = None
        self.pool.open.discard(self)
        owner, state = self.owner, self._state
        if owner is None:
            return
        if state == _CLOSE and exc is None:
            self._finish(self._collected_body())
        elif self._pending is not None and state == _HEAD and not self.pool.closed:
            # the engine closed an idle connection as we used it: nothing was answered, so send it once more
            request, self.owner = self._pending, None
            owner.replaced(self, self.pool.connect(request, owner))
        else:
            self._fail("stream" if self.got else "connection", "the engine closed the connection")

    def _fail(self, cause: FailureCause, message: str) -> None:
        owner, self.owner, self.sink = self.owner, None, None
        if owner is not None:
            owner.answer_failed(self, cause, message)

    # Reading

    def data_received(self, data: bytes) -> None:
        """The hot path is a chunked body that is relayed."""
        state, tracker, sink = self._state, self.tracker, self.sink
        if (
            sink is not None
            and tracker is not None
            and STEPS.get(data[:KEY]) == len(data) <= TAIL
            and not tracker.held
            and data.endswith(END_OF_EVENT)
            and ERROR_EVENT not in data
        ):  # one whole chunk of whole events: as tokens come. Nothing else needs to be known of it
            _, before, last = tracker.tail
            tracker.tail = (before, last, data)
            tracker.frames += data.count(b"data: ")
            sink(data)
        elif state == _CHUNKED:
            assert tracker is not None
            try:
                whole = tracker.feed(data)
            except ChunkError as error:
                self._broken(str(error))
                return
            if whole:
                if self._collect is None and self.owner is not None:
                    self.owner.answer_bytes(self, whole)
                else:
                    self._body(whole)
            if tracker.done and self.owner is not None:
                self._keep = self._keep and not tracker.surplus
                self._finish(self._collected_body())
        elif state == _LENGTH:
            self._length(data)
        elif state == _HEAD:
            self._head(data)
        elif state == _CLOSE:
            self._body(data)
        else:  # bytes nobody asked for: the connection is not to be trusted
            self.abort()

    def _head(self, data: bytes) -> None:
        self.got = True
        self._pending = None
        buffer = self._buffer + data if self._buffer else data
        end = buffer.find(b"\r\n\r\n")
        if end < 0:
            self._buffer = buffer
            if len(buffer) > MAX_HEAD:
                self._broken("the engine's head is too long")
            return
        self._buffer = b""
        rest = buffer[end + 4 :]
        try:
            self.status, length, keep = read_head(buffer[: end + 2])
        except ValueError:
            self._broken("the engine's head is malformed")
            return
        if self.status < 200:  # 100 Continue
            if rest:
                self._head(rest)
            return
        if not keep:
            self._keep = False
        owner = self.owner
        if owner is None:
            return
        relay = owner.answer_head(self, self.status, length)
        if self.owner is None:  # the owner gave it up
            return
        self._collect = None if relay else []
        if length == len(rest) and not relay:  # the common case: all of it in one read
            self._finish(rest)
        else:
            self._begin_body(length, rest)

    def _begin_body(self, length: int, rest: bytes) -> None:
        self._collected = 0
        if length >= 0:
            self._state, self._left = _LENGTH, length
            self._length(rest)
        elif length == -1:
            self._state, self.tracker = _CHUNKED, ChunkTracker()
            if rest:
                self.data_received(rest)
        else:
            self._state, self._keep = _CLOSE, False
            if rest:
                self._body(rest)

    def _length(self, data: bytes) -> None:
        if len(data) > self._left:
            data, self._keep = data[: self._left], False
        self._left -= len(data)
        if data:
            self._body(data)
        if self._left == 0 and self.owner is not None:
            self._finish(self._collected_body())

    def _body(self, data: bytes) -> None:
        if self._collect is None:
            if self.owner is not None:
                self.owner.answer_bytes(self, data)
            return
        self._collect.append(data)
        self._collected += len(data)
        if self._collected > MAX_ANSWER:
            self._broken("the engine's answer is too long")

    def _broken(self, message: str) -> None:
        self._fail("stream", message)
        self.abort()

    def _collected_body(self) -> bytes:
        collected, self._collect = self._collect, None
        if collected is None:
            return b""
        body = b"".join(collected)
        return body if self.tracker is None else dechunk(body)

    def _finish(self, body: bytes) -> None:
        owner, self.owner, self.sink, pool = self.owner, None, None, self.pool
        if self._paused:
            self.resume()
        self._state = _IDLE
        self._used_t = pool.loop.time()
        if self._keep and self.transport is not None and not pool.closed:
            pool.idle.append(self)
        elif self.transport is not None:
            self.transport.close()
        if owner is not None:
            owner.answer_done(self, body)
        self.tracker = None
