"""One request and its legs: sends what control commands, relays what comes, reports what happened."""

import math
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
from msgspec import Raw

from narwhal.control.events import FailureCause, Leg, LegFailed, PrefillFinished, RequestFinished
from narwhal.control.failures import FAILURES
from narwhal.engine.dialect import ERROR_EVENT
from narwhal.router.chunks import ChunkTracker, Dechunker, dechunk
from narwhal.router.continuation import Rest
from narwhal.router.deadlines import Watch
from narwhal.router.delivered import Delivered, without_prompt_ids
from narwhal.router.door import Parsed, asks_token_ids
from narwhal.router.http import Connection
from narwhal.router.replies import as_error, error_body, retry_after
from narwhal.router.resuming import Resumed, body_to_keep, lacks_no_token
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


_usage = msgspec.json.Decoder(_WithUsage).decode
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
    dechunker: Dechunker | Rest | None = None
    """Makes what is written of what an engine sends; None: it is written as it comes."""
    delivered: Delivered | None = None
    """Ids of its tokens, where it may go on on another engine."""
    resumed: Resumed | None = None
    """What is known of a stream that broke and goes on."""
    held: bytes = b""
    """Bytes of a stream before its first token: while they are held, another engine may still serve it."""
    visible: bool = False
    """Whether the client has seen a byte of the answer."""
    relaying: bool = False
    """Whether a token of the present leg has gone to the client."""
    over: bool = False
    attempts: int = 0
    frames: int = 0
    frames_reported: int = 0
    completion_tokens: int = 0
    prompt_tokens: int = 0
    sent_t: float = 0.0
    begun_t: float = 0.0
    """When its first leg was sent."""
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
        else:
            self.decode_engine, keeps = engine, parsed.resumable
            self.relaying, self.frames, self.frames_reported = False, 0, 0
            if keeps:
                self.delivered = Delivered() if self.resumed is None else self.resumed.delivered()
            if leg == "decode" and self.handoff is not None:
                # a handoff that is read twice, or after its lease, gives wrong tokens with HTTP 200
                handoff, self.handoff = self.handoff, None
                once, until = True, self.prefilled_t + shell.settings.kv_lease_s / 2
                body = dialect.leg2(parsed.body, handoff, token_ids=keeps)
            else:
                body = dialect.whole(parsed.body, token_ids=keeps)
        self.sent_t = shell.now()
        self.begun_t = self.begun_t or self.sent_t
        request = b"%s%s\r\n%scontent-length: %d\r\n\r\n%s" % (
            pool.post_head(parsed.route), self.request_id, parsed.forwarded, len(body), body,
        )  # fmt: skip
        self.up = pool.send(request, self, once=once, until=until)

    def drop(self) -> None:
        """Abort the leg that runs, without a word."""
        up, self.up = self.up, None
        if up is not None:
            if self.relaying and self.delivered is not None and up.tracker is not None:
                self.delivered.broke(up.tracker)
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
            self._stream_error(up, data)
            return
        if self.relaying:
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
        data, self.held = self.held + data, b""
        now = self.shell.now()
        self._begin_relay(data, now)
        self._forget_body()
        self.shell.first_token(self, now)

    def _begin_relay(self, data: bytes, now: float) -> None:
        """The first bytes of a leg that a client gets: of an answer, or of the rest of one that broke."""
        self.relaying = True
        if not self.visible:
            self.first_t = now
            self._open_stream(data)
            return
        connection, resumed = self.connection, self.resumed
        assert connection is not None
        assert resumed is not None
        self.dechunker = resumed.rest(self.parsed.role_frames, now, chunked=not connection.http10)
        connection.transport.write(self.dechunker.feed(data))

    def _forget_body(self) -> None:
        """A stream that goes on for minutes need not keep its prompt: another engine is given ids, if it is asked."""
        body = body_to_keep(self.parsed, self.delivered)
        if body is not None and self.connection is not None:
            self.parsed.body = body
            self.connection.forget_body()

    def _open_stream(self, data: bytes) -> None:
        connection, self.visible = self.connection, True
        assert connection is not None
        if self.delivered is not None:
            self.delivered.begin(data)
            if not asks_token_ids(self.parsed):
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

    def keep_no_more(self) -> None:
        """Its ids are too many: it ends with its engine."""
        self.delivered = None
        self._forget_body()
        if self.up is not None and self.up.sink is not None and self.connection is not None:
            self.up.sink = self.connection.transport.write

    def seen_frames(self) -> int:
        """Frames of its stream so far."""
        if self.up is not None and self.up.tracker is not None:
            self.frames = self.up.tracker.frames
        return self.frames

    def _stream_error(self, up: Upstream, data: bytes) -> None:
        """The engine reports a failure inside the stream: relay what came before it, then the leg has failed."""
        content = dechunk(data)
        before = content[: content.find(ERROR_EVENT)]
        if self.relaying and before and self.connection is not None:
            chunk = b"%x\r\n%s\r\n" % (len(before), before)
            self.connection.transport.write(chunk if self.dechunker is None else self.dechunker.feed(chunk))
        if not lacks_no_token(self, up):
            self.drop()
            self._failed("stream", 500)

    def write_last(self, events: bytes) -> None:
        """Write events of our own, and the end of the stream; only whole chunks came before."""
        connection = self.connection
        assert connection is not None
        chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(events), events)
        connection.transport.write(events if connection.http10 else chunked)

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
        self.prefilled_t = self.shell.now()
        if self.resumed is None:
            self.prompt_tokens = answer.prompt_tokens
            self.shell.learn_prompt(self.parsed, answer.prompt_tokens)
        self.shell.feed(PrefillFinished(self.prefilled_t, self.number, answer.prompt_tokens, answer.generation))

    def _stream_done(self, tracker: ChunkTracker) -> None:
        self.frames = tracker.frames
        if not self.relaying:  # a stream that ended without a token
            data, self.held = self.held, b""
            self._begin_relay(data, self.shell.now())
        self._take_usage(tracker.usage)
        connection = self.connection
        self.finished()
        if connection is not None:
            connection.finished()

    def _buffered_done(self, body: bytes) -> None:
        if self.visible:  # the rest of a stream that is none
            self._failed("status", 200)
            return
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
        self.finished()
        if connection is not None:
            connection.respond(200, body, headers=b"x-request-id: %s\r\n" % self.request_id)

    def _take_usage(self, usage: bytes) -> None:
        """Tokens of a stream: from its usage frame, else its frames less those that hold no token."""
        told = _COMPLETION_TOKENS.search(usage)
        if told is None:
            ids = len(self.delivered.ids) if self.delivered is not None else 0
            self.completion_tokens = ids or max(self.frames - self.parsed.role_frames - 1, 0)  # the last is `[DONE]`
            return
        self.completion_tokens = int(told.group(1)) + (self.resumed.kept if self.resumed is not None else 0)
        prompt = _PROMPT_TOKENS.search(usage)
        if prompt is not None and not self.prompt_tokens:
            self.prompt_tokens = int(prompt.group(1))

    def finished(self) -> None:
        """The answer is complete."""
        self.last_t = self.shell.now()
        self.shell.end(
            self, "served", "", RequestFinished(self.last_t, self.number, self.completion_tokens, self.prompt_tokens)
        )

    def _engine_error(self, status: int, body: bytes) -> None:
        if 400 <= status < 500 or status == 501:  # 501: a model that cannot do what was asked
            connection = self.connection
            self.status = status
            event = LegFailed(self.shell.now(), self.number, self.leg, self.engine, "client", False, status)
            if self.visible:  # the rest of a stream is refused, which the client did not ask for
                self.shell.end(self, "cut", "upstream", event)
                self.abort(502, "upstream", FAILURES["status"])
                return
            self.shell.end(self, "refused", "client", event)
            if connection is not None:
                headers = b"x-request-id: %s\r\n" % self.request_id
                connection.respond(status, as_error(status, body, self.parsed.route), headers=headers)
            return
        self._failed("overload" if status == 503 else "status", status)

    def answer_failed(self, up: Upstream, cause: FailureCause, message: str) -> None:
        """The leg broke. A stream that has said `[DONE]` lacks its last chunk alone: an error would contradict it."""
        self.up = None
        if self.relaying and up.tracker is not None and up.tracker.said_done:
            if self.connection is not None and not self.connection.http10:
                self.connection.transport.write(b"0\r\n\r\n")
            self._stream_done(up.tracker)
        elif not lacks_no_token(self, up):
            self._failed(cause, 0)

    def _failed(self, cause: FailureCause, status: int) -> None:
        shell = self.shell
        self.attempts += not self.relaying
        shell.feed(LegFailed(shell.now(), self.number, self.leg, self.engine, cause, self.relaying, status))

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
        connection = self.connection
        self.drop()
        if connection is None or connection.transport is None:
            return
        self.write_last(b"data: " + error_body(status, message, code=code) + b"\n\n")
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
