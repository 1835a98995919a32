"""One request and its legs: sends what control commands, relays what comes, reports what happened."""

import math
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw

from narwhal.control.events import FailureCause, Leg, LegFailed, PrefillFinished, RequestFinished
from narwhal.engine.dialect import ERROR_EVENT
from narwhal.router.chunks import ChunkTracker, Dechunker, dechunk
from narwhal.router.deadlines import Watch
from narwhal.router.delivered import Delivered, without_prompt_ids
from narwhal.router.door import Parsed, asks_token_ids
from narwhal.router.http import Connection
from narwhal.router.replies import REASONS, error_body, retry_after
from narwhal.router.upstream import Upstream

if TYPE_CHECKING:
    from narwhal.router.requests import Requests


class _Usage(msgspec.Struct):
    """As completions and chats say it; `/v1/responses` has names of its own."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    input_tokens: int = 0
    output_tokens: int = 0


class _WithUsage(msgspec.Struct):
    usage: _Usage | None = None


class _WithError(msgspec.Struct):
    error: Any = None


_usage = msgspec.json.Decoder(_WithUsage).decode
_error = msgspec.json.Decoder(_WithError).decode
_COMPLETION_TOKENS = re.compile(rb'"(?:completion|output)_tokens":\s*(\d{1,12})')
_PROMPT_TOKENS = re.compile(rb'"(?:prompt|input)_tokens":\s*(\d{1,12})')


class Exchange(msgspec.Struct, eq=False):
    """A client's request between the door and its last byte. Owner of at most one upstream answer at a time.

    A struct, because one is made for each request: the defaults below are set at once, in C.
    """

    shell: "Requests"
    connection: Connection | None
    """The client's; None once it is gone."""
    parsed: Parsed
    request_id: bytes
    number: int
    watch: Watch
    """Its deadlines."""
    tenant: str
    arrived_t: float
    up: Upstream | None = None
    leg: Leg = "prefill"
    engine: str = ""
    prefill_engine: str = ""
    decode_engine: str = ""
    handoff: Raw | None = None
    dechunker: Dechunker | None = None
    delivered: Delivered | None = None
    """Ids of its tokens, where `serving.continuation` keeps them."""
    held: bytes = b""
    """Bytes of a stream before its first token: while they are held, another engine may still serve it."""
    visible: bool = False
    over: bool = False
    attempts: int = 0
    frames: int = 0
    frames_reported: int = 0
    completion_tokens: int = 0
    prompt_tokens: int = 0
    sent_t: float = 0.0
    prefilled_t: float = 0.0
    first_t: float = 0.0
    last_t: float = 0.0
    status: int = 200

    # Legs

    def start(self, leg: Leg, engine: str) -> None:
        """Send a leg to an engine; what ran before is aborted."""
        if self.up is not None or self.held:
            self.drop()
        shell, parsed = self.shell, self.parsed
        dialect = shell.dialect
        self.leg, self.engine = leg, engine
        pool = shell.pools.get(engine)
        if pool is None:
            shell.later(LegFailed(shell.now(), self.number, leg, engine, "connection"))
            return
        once, until = False, math.inf
        if leg == "prefill":
            self.prefill_engine, body = engine, dialect.leg1(parsed.body)
        elif leg == "decode" and self.handoff is not None:
            # a handoff that is read twice, or after its lease, gives wrong tokens with HTTP 200
            handoff, self.handoff = self.handoff, None
            once, until = True, self.prefilled_t + shell.settings.kv_lease_s / 2
            keeps = parsed.stream and shell.settings.serving.continuation
            self.delivered = Delivered() if keeps else None
            self.decode_engine, body = engine, dialect.leg2(parsed.body, handoff, token_ids=keeps)
        else:
            self.delivered = None
            self.decode_engine, body = engine, dialect.whole(parsed.body)
        self.sent_t = shell.now()
        request = b"%s%s\r\n%scontent-length: %d\r\n\r\n%s" % (
            pool.post_head(parsed.route), self.request_id, parsed.forwarded, len(body), body,
        )  # fmt: skip
        self.up = pool.send(request, self, once=once, until=until)

    def drop(self) -> None:
        """Abort the leg that runs, without a word."""
        up, self.up = self.up, None
        if up is not None:
            up.abort()
        self.held = b""
        self.dechunker = None

    # Owner of an answer

    def replaced(self, old: Upstream, new: Upstream) -> None:
        """A stale connection was replaced by a fresh one."""
        if self.up is old:
            self.up = new

    def answer_head(self, up: Upstream, status: int, length: int) -> bool:
        """Relay a stream; collect everything else."""
        return self.leg != "prefill" and status == 200 and self.parsed.stream and length == -1

    def answer_bytes(self, up: Upstream, data: bytes) -> None:
        """Relay a read of a stream; most of them go to the sink instead."""
        connection, tracker = self.connection, up.tracker
        if connection is None or tracker is None:
            return
        self.frames = tracker.frames
        if self.delivered is not None:
            self.delivered.feed(data, tracker.whole_events)
        if ERROR_EVENT in data:
            self._stream_error(data)
            return
        if self.visible:
            connection.transport.write(data if self.dechunker is None else self.dechunker.feed(data))
        else:
            self._before_first_token(data)
        if connection.slow:
            up.pause()

    def _before_first_token(self, data: bytes) -> None:
        """A chat stream begins with a role frame that is no token: hold it until a token comes."""
        if self.frames <= self.parsed.role_frames:
            self.held += data
            return
        self._open_stream(self.held + data)
        self.held = b""
        if self.delivered is None:
            self._forget_body()
        self.first_t = self.shell.now()
        self.shell.first_token(self)

    def _forget_body(self) -> None:
        """No other engine will be asked: a stream that goes on for minutes need not keep its prompt."""
        self.parsed.body = {}
        if self.connection is not None:
            self.connection.forget_body()

    def _open_stream(self, data: bytes) -> None:
        connection = self.connection
        assert connection is not None
        self.visible = True
        if self.delivered is not None and not asks_token_ids(self.parsed):
            data = without_prompt_ids(data, last=self.up is None or self.up.ended)
        if connection.http10:
            connection.keep_alive = False
            self.dechunker = Dechunker()
            framing, data = b"connection: close\r\n\r\n", self.dechunker.feed(data)
        else:
            framing = b"transfer-encoding: chunked\r\n%s\r\n" % (
                b"" if connection.keep_alive else b"connection: close\r\n"
            )
        connection.transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
            b"x-request-id: %s\r\n%s%s" % (self.request_id, framing, data)
        )
        if self.up is not None and self.dechunker is None:
            self.up.sink = self._sink(self.up, connection.transport.write)

    def _sink(self, up: Upstream, write: Callable[[bytes], None]) -> Callable[[bytes], None]:
        """What has to be done with an event that comes alone, once the stream is open."""
        tracker, delivered = up.tracker, self.delivered
        if tracker is None or delivered is None:
            return write

        def keep_and_write(data: bytes) -> None:
            delivered.feed(data, tracker.whole_events)
            write(data)

        return keep_and_write

    def seen_frames(self) -> int:
        """Frames of its stream so far."""
        if self.up is not None and self.up.tracker is not None:
            self.frames = self.up.tracker.frames
        return self.frames

    def _stream_error(self, data: bytes) -> None:
        """The engine reports a failure inside the stream: relay what came before it, then the leg has failed."""
        content = dechunk(data)
        before = content[: content.find(ERROR_EVENT)]
        if self.visible and before and self.connection is not None:
            chunk = before if self.dechunker is not None else b"%x\r\n%s\r\n" % (len(before), before)
            self.connection.transport.write(chunk)
        self.drop()
        self._failed("stream", 500)

    def answer_done(self, up: Upstream, body: bytes) -> None:
        """An answer is complete: leg 1's handoff, a buffered answer, or the end of a stream."""
        self.up = None
        if up.status != 200:
            self._engine_error(up.status, body)
        elif self.leg == "prefill":
            self._prefilled(body)
        elif self.parsed.stream and up.tracker is not None and not body:
            self._stream_done(up.tracker)
        else:
            self._buffered_done(body)

    def _prefilled(self, body: bytes) -> None:
        answer = self.shell.dialect.leg1_answer(body)
        if answer is None:
            self._failed("handoff", 0)
            return
        self.handoff = answer.handoff
        self.prompt_tokens = answer.prompt_tokens
        self.prefilled_t = self.shell.now()
        self.shell.learn_prompt(self.parsed, answer.prompt_tokens)
        self.shell.feed(PrefillFinished(self.prefilled_t, self.number, answer.prompt_tokens, answer.generation))

    def _stream_done(self, tracker: ChunkTracker) -> None:
        self.frames = tracker.frames
        if not self.visible:  # a stream that ended without a token
            self.first_t = self.shell.now()
            self._open_stream(self.held)
            self.held = b""
        self._take_usage(tracker.usage)
        connection = self.connection
        self._finished()
        if connection is not None:
            connection.finished()

    def _buffered_done(self, body: bytes) -> None:
        try:
            usage = _usage(body).usage
        except msgspec.DecodeError:
            self._failed("status", 200)
            return
        if usage is not None:
            self.completion_tokens = usage.completion_tokens or usage.output_tokens
            self.prompt_tokens = self.prompt_tokens or usage.prompt_tokens or usage.input_tokens
        self.first_t = self.first_t or self.shell.now()
        connection = self.connection
        self._finished()
        if connection is not None:
            connection.respond(200, body, headers=b"x-request-id: %s\r\n" % self.request_id)

    def _take_usage(self, usage: bytes) -> None:
        """Tokens of a stream: from its usage frame, else its frames less those that hold no token."""
        told = _COMPLETION_TOKENS.search(usage)
        if told is None:
            ids = len(self.delivered.ids) if self.delivered is not None else 0
            self.completion_tokens = ids or max(self.frames - self.parsed.role_frames - 1, 0)  # the last is `[DONE]`
            return
        self.completion_tokens = int(told.group(1))
        prompt = _PROMPT_TOKENS.search(usage)
        if prompt is not None and not self.prompt_tokens:
            self.prompt_tokens = int(prompt.group(1))

    def _finished(self) -> None:
        self.last_t = self.shell.now()
        self.shell.end(
            self, "served", "", RequestFinished(self.last_t, self.number, self.completion_tokens, self.prompt_tokens)
        )

    def _engine_error(self, status: int, body: bytes) -> None:
        if 400 <= status < 500 or status == 501:  # 501: a model that cannot do what was asked
            connection = self.connection
            self.status = status
            event = LegFailed(self.shell.now(), self.number, self.leg, self.engine, "client", self.visible, status)
            self.shell.end(self, "refused", "client", event)
            if connection is not None:
                headers = b"x-request-id: %s\r\n" % self.request_id
                connection.respond(status, as_error(status, body, self.parsed.route), headers=headers)
            return
        self._failed("overload" if status == 503 else "status", status)

    def answer_failed(self, up: Upstream, cause: FailureCause, message: str) -> None:
        """The leg broke. A stream that has said `[DONE]` lacks its last chunk alone: an error would contradict it."""
        self.up = None
        if self.visible and up.tracker is not None and up.tracker.said_done:
            if self.dechunker is None and self.connection is not None:
                self.connection.transport.write(b"0\r\n\r\n")
            self._stream_done(up.tracker)
            return
        self._failed(cause, 0)

    def _failed(self, cause: FailureCause, status: int) -> None:
        shell = self.shell
        self.attempts += 1
        shell.feed(LegFailed(shell.now(), self.number, self.leg, self.engine, cause, self.visible, status))

    # Towards the client

    def refuse(self, status: int, code: str, message: str, retry_after_s: float) -> None:
        """Answer with an error; nothing of the answer has been sent."""
        connection = self.connection
        self.drop()
        if connection is None:
            return
        headers = b"x-request-id: %s\r\n" % self.request_id + retry_after(retry_after_s)
        connection.respond(status, error_body(status, message, code=code), headers=headers)

    def abort(self, status: int, code: str, message: str, retry_after_s: float = 0.0) -> None:
        """End the request with an error: an event in a stream that has begun, else an answer."""
        if not self.visible:
            self.refuse(status, code, message, retry_after_s)
            return
        connection, chunked = self.connection, self.dechunker is None
        self.drop()
        if connection is None or connection.transport is None:
            return
        # whole chunks alone are relayed, so this stands at a boundary
        event = b"data: " + error_body(status, message, code=code) + b"\n\n"
        connection.transport.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(event), event) if chunked else event)
        connection.keep_alive = False
        connection.finished()

    def client_gone(self) -> None:
        """The client left: abort the engine's work at once."""
        self.connection = None
        self.drop()
        self.shell.cancelled(self)

    def client_slow(self, slow: bool) -> None:
        """Pass backpressure on to the engine."""
        if self.up is not None:
            if slow:
                self.up.pause()
            else:
                self.up.resume()


def as_error(status: int, body: bytes, route: str) -> bytes:
    """An engine's error as it is, or as OpenAI's clients read one when it has another shape."""
    try:
        if isinstance(_error(body).error, dict):
            return body
    except msgspec.DecodeError:
        pass
    missing = status in (404, 405, 501)
    return error_body(status, f"the model is not served on {route}" if missing else REASONS.get(status, "Error"))
