"""One streamed completion on one connection, read without a JSON parse per token.

A load generator that is slower than the server measures itself. So the protocol looks at bytes: it needs the
time of the first and the last chunk that holds text, the usage, and whether the stream was closed properly. Most reads
are one HTTP chunk with one event that differs from the one before it in its text alone: those are told by their head
and pass the parser by, which takes a quarter of the time. All others are parsed.
"""

import asyncio
import json
import re
from collections.abc import Callable
from typing import cast

import httptools

from narwhal.measure.outcome import Outcome

_TEXT = re.compile(rb'"(?:text|content|reasoning_content)": ?"[^"]')
"""A chunk with text. Inside a JSON string the quotes would be escaped, so generated text cannot match."""
_USAGE = re.compile(rb'"completion_tokens": ?(\d+)')
_PROMPT = re.compile(rb'"prompt_tokens": ?(\d+)')
_ERROR = re.compile(rb'^data: ?\{"error"', re.MULTILINE)
_DONE = b"data: [DONE]"
_REFUSALS = (429, 503)
_CHOICES_END = b"}]}\n\n"
"""End of an event that has nothing after its choices: no usage."""
_CHUNK_END = _CHOICES_END + b"\r\n"
_QUOTE = ord('"')
_ERROR_BYTES = 4096
"""How much of an error body is kept to read its message."""


class CompletionProtocol(asyncio.Protocol):
    """Sends one request and fills in its `Outcome`; calls `on_end` exactly once, when that is final."""

    def __init__(
        self, request: bytes, outcome: Outcome, clock: Callable[[], float], on_end: Callable[[Outcome], None]
    ) -> None:
        self._request = request
        self._outcome = outcome
        self._clock = clock
        self._on_end = on_end
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._rest = b""
        self._error_body = b""
        self._done = False
        self._ended = False
        self._between = False
        """Whether the parser stands between two chunks of the body, and an event with a token was seen."""
        self._like = b""
        """That event up to its text."""
        self._frame = self._text = 0
        """Bytes of its chunk around the event, and before its text."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one, but does not say so
        self._transport.write(self._request)
        self._request = b""

    def data_received(self, data: bytes) -> None:
        """Feed the parser; what it cannot read ends the request."""
        if self._between and self._is_like_before(data):
            self._tokens(1)
            return
        if self._ended:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.end(f"not HTTP: {error}")
        if not data.endswith(b"\r\n"):  # the length of the next chunk has begun, or its end is missing
            self._between = False

    def _is_like_before(self, data: bytes) -> bool:
        """Whether a read is one whole chunk with one event, which differs from the one before in its text alone."""
        size = len(data) - self._frame
        return (
            data.startswith(b"%x\r\n%b" % (size, self._like))
            and data.endswith(_CHUNK_END)
            and data.find(b"\n\n", self._text) == size + self._frame - 4
            and data[self._text] != _QUOTE
        )

    def connection_lost(self, exc: Exception | None) -> None:
        """The server closed: fine after the end of the answer, a cut before it."""
        if exc is None and self._done:  # a body without length or chunks ends with its connection
            self.end("")
        self.end(f"connection lost: {exc}" if exc else "connection closed before the end of the answer")

    def on_headers_complete(self) -> None:
        """httptools: the status is known."""
        self._outcome.status = self._parser.get_status_code()

    def on_chunk_header(self) -> None:
        """httptools: a chunk of the body begins."""
        self._between = False

    def on_chunk_complete(self) -> None:
        """httptools: a chunk of the body is over."""
        self._between = bool(self._like) and not self._rest and not self._ended

    def on_body(self, body: bytes) -> None:
        """httptools: a piece of the body; an event may be split over two of them."""
        if self._outcome.status != 200:
            self._error_body += body[: _ERROR_BYTES - len(self._error_body)]
            return
        if self._rest:
            body = self._rest + body
        whole = body.rfind(b"\n\n") + 2
        if whole < 2:
            self._rest = body
            return
        self._rest = body[whole:]
        self._events(body[:whole] if self._rest else body)

    def on_message_complete(self) -> None:
        """httptools: the answer is over."""
        if self._outcome.status != 200:
            self.end(_message(self._error_body) or f"status {self._outcome.status}")
        else:
            self.end("" if self._done else "the stream ended without [DONE]")

    def _events(self, events: bytes) -> None:
        outcome = self._outcome
        chunks = len(_TEXT.findall(events))
        if chunks:
            self._tokens(chunks)
            self._note(events)
        if b'"completion_tokens"' in events and (usage := _USAGE.search(events)):
            outcome.tokens = int(usage[1])
            if told := _PROMPT.search(events):
                outcome.prompt_tokens = int(told[1])
        if b'"error"' in events and _ERROR.search(events):
            self._error_body = events[:_ERROR_BYTES]
            self.end(_message(events.partition(b"data:")[2].partition(b"\n\n")[0]) or "error event in the stream")
        elif _DONE in events[-32:]:
            self._done = True

    def _note(self, events: bytes) -> None:
        """Keep what later events are compared with, where this is one event with a token and only its choices."""
        found = _TEXT.search(events)
        if found is None or events.find(b"\n\n") != len(events) - 2 or not events.endswith(_CHOICES_END):
            return
        digits = len(b"%x" % len(events))
        self._like = events[: found.end() - 1]
        self._frame = digits + len(b"\r\n\r\n")
        self._text = digits + len(b"\r\n") + len(self._like)

    def _tokens(self, count: int) -> None:
        """So many chunks with text came now."""
        outcome, now = self._outcome, self._clock()
        last = outcome.last_token_s
        if last is None:
            outcome.first_token_s = now
        elif outcome.gap_s is None or now - last > outcome.gap_s:
            outcome.gap_s, outcome.gap_at_s = now - last, last
        outcome.last_token_s = now
        outcome.tokens += count

    def end(self, error: str, *, cancelled: bool = False) -> None:
        """Settle the outcome, close the connection, tell the owner. Later calls do nothing."""
        if self._ended:
            return
        self._ended, self._between = True, False
        outcome = self._outcome
        outcome.ended_s = self._clock()
        outcome.error = error
        if not error:
            outcome.result = "served"
        elif cancelled:
            outcome.result = "cancelled"
        elif outcome.status in _REFUSALS and outcome.first_token_s is None:
            outcome.result = "refused"
        else:
            outcome.result = "failed" if outcome.first_token_s is None else "cut"
        if self._transport is not None:
            self._transport.abort()
        self._on_end(outcome)


def _message(body: bytes) -> str:
    """The message of an OpenAI error body, at most 200 characters; empty when there is none."""
    try:
        return str(json.loads(body)["error"]["message"])[:200]
    except (ValueError, KeyError, TypeError):
        return ""
