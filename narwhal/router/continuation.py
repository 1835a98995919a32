"""Going on with a stream that broke: what was sent, what to ask another engine for, and its answer as the rest.

Pure: bytes in, bytes out. `resuming` moves them.
"""

import re
from typing import Any

import msgspec
from msgspec import Raw

from narwhal.engine.dialect import Body
from narwhal.router.chunks import Dechunker
from narwhal.router.routes import CHAT, ROUTES

MOST_DROPPED = 4
"""Most ids that are dropped from the end to reach the end of a character: none has more tokens."""
BROKEN = "\ufffd"
"""What stands for a part of a character in a text."""
_EVENT = re.compile(rb"data: (\{.*\})\n\n")
"""An event in whole chunks; JSON text holds no line break."""
_PROMPT_IDS = re.compile(rb'"prompt_token_ids": ?\[([0-9, ]*)\]')
PROMPT_MARKS = (b'"prompt_token_ids":[', b'"prompt_token_ids": [')
"""How the ids of a prompt begin."""
_ID = re.compile(rb'"id": ?"[^"]*"')
_CREATED = re.compile(rb'"created": ?\d+')
_MODEL = re.compile(rb'"model": ?"(?:[^"\\]|\\.)*"')
_REASONING = b'"reasoning'
_USAGE = b'"usage":{'
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class Opening(msgspec.Struct, frozen=True):
    """What the first events of a stream tell: the rest has to begin like them."""

    id: bytes
    """`"id":"…"` as it came."""
    created: bytes
    model: bytes
    prompt_ids: bytes
    """The ids of the prompt, with commas between them."""

    @property
    def prompt_tokens(self) -> int:
        """How many they are."""
        return self.prompt_ids.count(b",") + 1


def find_prompt_ids(data: bytes) -> tuple[int, int, int] | None:
    """Where the ids of the prompt stand: their name, their first digit, the bracket after them; None: nowhere."""
    for mark in PROMPT_MARKS:
        start = data.find(mark)
        end = data.find(b"]", start) if start >= 0 else -1
        if end >= 0:
            return start, start + len(mark), end
    return None


def _is_ids(text: bytes) -> bool:
    """Whether this is a list of ids; where an event lies in several chunks, their sizes stand between."""
    return bool(text) and not text.translate(None, b"0123456789, ")


def read_opening(data: bytes) -> Opening | None:
    """The opening of a stream from its first events; None when it cannot go on from what they tell.

    So it is without ids, and where a parser of the engine takes the answer apart (`reasoning`).
    """
    ids = find_prompt_ids(data)
    found = [pattern.search(data) for pattern in (_ID, _CREATED, _MODEL)]
    name, created, model = [match.group() if match else b"" for match in found]
    if ids is None or not _is_ids(data[ids[1] : ids[2]]) or not name or not created or not model or _REASONING in data:
        return None
    return Opening(name, created, model, data[ids[1] : ids[2]])


class Tail(msgspec.Struct, frozen=True):
    """The end of what a stream has sent."""

    text: str
    tokens: int
    """Ids that came with this text."""
    finished: bool
    """Its last token is among them: only the usage and `[DONE]` may be missing."""
    counted: bool
    """Its usage is among them, too."""


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    token_ids: list[int] | None = None
    finish_reason: str | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] | None = None


_read_event = msgspec.json.Decoder(_Event).decode


def read_tail(data: bytes) -> Tail | None:
    """What the last bytes of a stream say; None where an event is none. One whose beginning is missing is left out."""
    text, tokens, finished = "", 0, False
    try:
        events = [_read_event(match.group(1)) for match in _EVENT.finditer(data)]
    except (msgspec.DecodeError, RecursionError):
        return None
    for choice in [choice for event in events for choice in event.choices or ()]:
        text += (choice.delta.content if choice.delta is not None else choice.text) or ""
        tokens += len(choice.token_ids or ())
        finished = finished or choice.finish_reason is not None
    return Tail(text, tokens, finished, _USAGE in data)


def fits(text: str, tail: Tail, tokens: int) -> bool:
    """Whether the text of ids is what the client was sent, to its end, and ends with a whole character.

    `tokens`: how many ids were delivered. What was sent is known from the last events alone: a text is not kept.
    An engine gives an answer's first word its space, and takes it away when it turns ids into text.
    """
    if text.endswith(BROKEN):
        return False
    if tail.tokens < tokens:
        return text.endswith(tail.text)
    return text.lstrip(" ") == tail.text.lstrip(" ")


def rest_limit(route: str, body: Body, max_tokens: int, room: int, kept: int) -> tuple[str, int]:
    """The field that limits the rest, and its value; no field where the engine's own limit does.

    `room`: tokens between the end of the prompt and the end of the context; `kept`: tokens that were delivered.
    """
    names = ROUTES[route].limits
    given = next((name for name in names if name in body and bytes(body[name]) != b"null"), "")
    if not given and route == CHAT:
        return "", room - kept
    return given or names[0], min(max_tokens, room) - kept


def rest_body(route: str, body: Body, ids: bytes, limit: tuple[str, int], kept: int) -> Body:
    """The body that asks for the rest: `ids` (the prompt's and those delivered) stand for the prompt."""
    rest = {name: value for name, value in body.items() if name not in _OF_THE_PROMPT}
    for name in ROUTES[route].limits:
        rest.pop(name, None)
    if limit[0]:
        rest[limit[0]] = Raw(b"%d" % limit[1])
    least = _decode(rest.pop("min_tokens")) if "min_tokens" in rest else None
    if least is not None and least > kept:
        rest["min_tokens"] = Raw(b"%d" % (least - kept))
    if route == CHAT:
        rest["kv_transfer_params"] = Raw(b'{"prompt_token_ids":[%s]}' % ids)
    else:
        rest["prompt"] = Raw(b"[%s]" % ids)
    return rest


_OF_THE_PROMPT = ("add_special_tokens", "truncation_side")
"""Fields that say how a text becomes a prompt: there are ids now."""


class Rest:
    """Makes another engine's stream the rest of one that broke.

    Its events bear the name and the time of the first, begin no second answer, and count usage once.
    """

    def __init__(self, opening: Opening, lead: int, prompt_tokens: int, kept: int, *, chunked: bool) -> None:
        """`lead`: its first events, which hold no token; `chunked`: what is written has HTTP/1.1's framing."""
        self.opening = opening
        self._lead = lead
        self._prompt_tokens = prompt_tokens
        self._kept = kept
        self._chunked = chunked
        self._dechunker = Dechunker()
        self._part = b""

    def feed(self, data: bytes) -> bytes:
        """What to write for the next chunks."""
        content = self._part + self._dechunker.feed(data)
        end = content.rfind(b"\n\n") + 2 if b"\n\n" in content else 0
        self._part = content[end:]
        out = b"".join([self._event(event + b"\n\n") for event in content[:end].split(b"\n\n")[:-1]])
        if not self._chunked:
            return out
        framed = b"%x\r\n%s\r\n" % (len(out), out) if out else b""
        return framed + b"0\r\n\r\n" if self._dechunker.done else framed

    def _event(self, event: bytes) -> bytes:
        if not event.startswith(b"data: {"):
            return event
        if self._lead > 0:
            self._lead -= 1
            return b""
        event = _ID.sub(lambda _: self.opening.id, event, count=1)
        event = _CREATED.sub(self.opening.created, event, count=1)
        event = _PROMPT_IDS.sub(b'"prompt_token_ids":null', event)
        return self._count(event) if _USAGE in event else event

    def _count(self, event: bytes) -> bytes:
        """The event with the usage of the whole answer; as it came where that is none that can be counted."""
        try:
            document: dict[str, Any] = _decode(event[6:])
            usage = document["usage"]
            usage["prompt_tokens"] = self._prompt_tokens
            usage["completion_tokens"] += self._kept
            usage["total_tokens"] = self._prompt_tokens + usage["completion_tokens"]
            details = usage.get("prompt_tokens_details")
            if details and details.get("cached_tokens"):
                details["cached_tokens"] = min(details["cached_tokens"], self._prompt_tokens)
            return b"data: %s\n\n" % _encode(document)
        except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
            return event


def last_events(opening: Opening, route: str, usage: tuple[int, int] | None) -> bytes:
    """The end of a stream that lacks nothing else: its usage (prompt, completion) if that is due, and `[DONE]`."""
    done = b"data: [DONE]\n\n"
    if usage is None:
        return done
    kind = b"chat.completion.chunk" if route == CHAT else b"text_completion"
    told = {"prompt_tokens": usage[0], "total_tokens": sum(usage), "completion_tokens": usage[1]}
    head = b'data: {%s,"object":"%s",%s,%s' % (opening.id, kind, opening.created, opening.model)
    return b'%s,"choices":[],"usage":%s}\n\n%s' % (head, _encode(told), done)
