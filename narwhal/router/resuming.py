"""A stream whose engine is lost after its first token: find out where its text stands, and ask for the rest.

Ids must not end inside a character: an engine that is given such a prompt tells the whole of it again. So an engine is
asked for their text first, and ids are dropped from the end until it is what the client was sent.
"""

from typing import TYPE_CHECKING

import msgspec
from msgspec import Raw

from narwhal.control.events import FailureCause, ResumeFailed, ResumeReady
from narwhal.engine.dialect import Body
from narwhal.router.continuation import (
    MOST_DROPPED,
    Opening,
    Rest,
    Tail,
    fits,
    last_events,
    read_tail,
    rest_body,
    rest_limit,
)
from narwhal.router.delivered import Delivered
from narwhal.router.door import Parsed, asks_token_ids
from narwhal.router.eligible import has_media
from narwhal.router.routes import CHAT, DETOKENIZE
from narwhal.router.upstream import Upstream

if TYPE_CHECKING:
    from narwhal.router.exchange import Exchange
    from narwhal.router.requests import Requests


class _Text(msgspec.Struct):
    prompt: str


_text = msgspec.json.Decoder(_Text).decode


class Resumed(msgspec.Struct):
    """A stream that broke: what it was before, and what was delivered of it."""

    parsed: Parsed
    """As its client asked for it."""
    opening: Opening
    prefilled_t: float
    """When leg 1 answered for the first time."""
    broke_t: float
    text: bytes = b""
    """The ids that were delivered, each with a comma after it."""
    kept: int = 0
    """How many they are."""
    times: int = 0
    """How often it went on."""
    gap_s: float = 0.0
    """Longest time from a break to the next token, in seconds."""

    @property
    def figures(self) -> tuple[float, int, float | None]:
        """For its row: when leg 1 answered first, how often it went on, the longest gap."""
        return self.prefilled_t, self.times, self.gap_s if self.times else None

    def delivered(self) -> Delivered:
        """Where the ids of the rest are kept."""
        return Delivered(self.text, self.opening)

    def rest(self, lead: int, now: float, *, chunked: bool) -> Rest:
        """The rest begins: its first token is here."""
        self.times += 1
        self.gap_s = max(self.gap_s, now - self.broke_t)
        return Rest(self.opening, lead, self.opening.prompt_tokens, self.kept, chunked=chunked)


def body_to_keep(parsed: Parsed, delivered: Delivered | None) -> Body | None:
    """What is needed of a body once its stream has begun: all of a chat (None), of a completion all but its prompt.

    Nothing where the stream cannot go on. What is kept has bytes of its own: what was read is freed as a whole.
    """
    if delivered is None or delivered.opening is None:
        return {}
    if parsed.route == CHAT:
        return None
    return {name: Raw(bytes(value)) for name, value in parsed.body.items() if name != "prompt"}


def lacks_no_token(exchange: "Exchange", up: Upstream) -> bool:
    """A stream broke: end it well if it lacks nothing but its usage and `[DONE]`, else keep its end."""
    connection, delivered, tracker = exchange.connection, exchange.delivered, up.tracker
    if not exchange.relaying or delivered is None or tracker is None or connection is None:
        return False
    delivered.broke(tracker)
    opening, tail = delivered.opening, read_tail(delivered.tail)
    if opening is None or delivered.torn or tail is None or not tail.finished:
        return False
    exchange.drop()
    exchange.completion_tokens = len(delivered.ids)
    asked = exchange.parsed.include_usage and not tail.counted
    usage = (exchange.prompt_tokens, exchange.completion_tokens) if asked else None
    exchange.write_last(last_events(opening, exchange.parsed.route, usage))
    exchange.finished()
    connection.finished()
    return True


def resume(requests: "Requests", exchange: "Exchange", engine: str) -> None:
    """Find out with an engine how a stream goes on; control hears `ResumeReady` or `ResumeFailed`."""
    exchange.drop()
    delivered, before, now = exchange.delivered, exchange.resumed, requests.now()
    opening = delivered.opening if delivered is not None else None
    tail = read_tail(delivered.tail) if delivered is not None else None
    if delivered is None or opening is None or delivered.torn or tail is None:
        requests.later(ResumeFailed(now, exchange.number, "", "its ids are not known"))
        return
    if exchange.relaying:
        parsed = before.parsed if before is not None else exchange.parsed
        prefilled_t = before.prefilled_t if before is not None else exchange.prefilled_t
        times, gap_s = (before.times, before.gap_s) if before is not None else (0, 0.0)
        exchange.resumed = Resumed(parsed, opening, prefilled_t, now, times=times, gap_s=gap_s)
        exchange.relaying = False
    if exchange.parsed.route == CHAT and has_media(exchange.parsed.body["messages"]):
        requests.later(ResumeFailed(now, exchange.number, "", "it holds media"))
        return
    _Question(requests, exchange, engine, delivered, tail).ask()


class _Question:
    """Asks an engine for the text of the ids, fewer each time. Owner of the answer."""

    def __init__(
        self, requests: "Requests", exchange: "Exchange", engine: str, delivered: Delivered, tail: Tail
    ) -> None:
        self._requests = requests
        self._exchange = exchange
        self._engine = engine
        self._tokens = delivered.text.split(b",")[:-1]
        self._tail = tail
        self._dropped = 0

    @property
    def _kept(self) -> list[bytes]:
        return self._tokens[: len(self._tokens) - self._dropped]

    def ask(self) -> None:
        """Ask for the text of what is left; nothing need be asked when nothing is."""
        pool = self._requests.pools.get(self._engine)
        if not self._kept:
            self._take("")
        elif pool is None:
            self._failed(self._engine, "the engine has left")
        else:
            body = b'{"tokens":[%s]}' % b",".join(self._kept)
            head = pool.post_head(DETOKENIZE) + self._exchange.request_id
            self._exchange.up = pool.send(b"%s\r\ncontent-length: %d\r\n\r\n%s" % (head, len(body), body), self)

    def answer_head(self, up: Upstream, status: int, length: int) -> bool:
        return False

    def answer_bytes(self, up: Upstream, data: bytes) -> None:
        """Never called: answers are collected."""

    def replaced(self, old: Upstream, new: Upstream) -> None:
        self._exchange.up = new

    def answer_done(self, up: Upstream, body: bytes) -> None:
        self._exchange.up = None
        try:
            text = _text(body).prompt if up.status == 200 else None
        except msgspec.DecodeError:
            text = None
        if text is None:
            self._failed(self._engine, "an engine does not tell the text of ids")
        else:
            self._take(text)

    def answer_failed(self, up: Upstream, cause: FailureCause, message: str) -> None:
        self._exchange.up = None
        self._failed(self._engine, message)

    def _take(self, text: str) -> None:
        if fits(text, self._tail, len(self._tokens)):
            self._ready()
        elif self._dropped < min(MOST_DROPPED, len(self._tokens)):
            self._dropped += 1
            self.ask()
        else:
            self._failed("", "its ids do not end with its text")

    def _failed(self, engine: str, reason: str) -> None:
        requests = self._requests
        requests.feed(ResumeFailed(requests.now(), self._exchange.number, engine, reason))

    def _ready(self) -> None:
        """Ask for the rest from now on."""
        requests, exchange, resumed = self._requests, self._exchange, self._exchange.resumed
        assert resumed is not None
        parsed, kept, opening = resumed.parsed, len(self._kept), resumed.opening
        room = requests.settings.max_model_len - opening.prompt_tokens
        limit = rest_limit(parsed.route, parsed.body, parsed.max_tokens, room, kept)
        if limit[1] < 1 or (self._dropped and asks_token_ids(parsed)):
            self._failed("", "ids that its client has would be told again" if self._dropped else "it has no token left")
            return
        resumed.text = b"".join([token + b"," for token in self._kept])
        resumed.kept = kept
        ids = b"%s,%s" % (opening.prompt_ids, resumed.text[:-1]) if kept else opening.prompt_ids
        body = rest_body(parsed.route, parsed.body, ids, limit, kept)
        exchange.parsed = msgspec.structs.replace(parsed, body=body)
        tokens = opening.prompt_tokens + kept
        requests.feed(ResumeReady(requests.now(), exchange.number, tokens, limit[1]))
