"""What a relay and control tell each other: control's own events and commands, and a few messages about themselves.

A frame is a length and a batch in MessagePack. A relay says with each message how many of control's frames it had
carried out by then (`seen`): what it reports of a leg that control has replaced meanwhile is thus known for stale.
Both ends are processes of one start, of one version.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from narwhal.control import commands as c
from narwhal.control import events as e
from narwhal.control.admission import Refusal
from narwhal.router.rows import RequestRow

LENGTH_BYTES = 4


class Message(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Base of what is neither event nor command."""


# From a relay


class Arrived(Message, frozen=True, tag=True):
    """A request passed a relay's door; with what its row needs, should the relay not live to write it."""

    event: e.RequestArrived
    id: str
    route: str
    stream: bool


class Over(Message, frozen=True, tag=True):
    """A request is over: its row, and the last event about it; None where control has ended it itself."""

    row: RequestRow
    event: e.RequestFinished | e.LegFailed | e.RequestCancelled | None


class Question(Message, frozen=True, tag=True):
    """Would a tenant's request be refused whatever it says, if its prompt has `least` to `most` tokens?"""

    number: int
    tenant: str
    least: int
    most: int


class Listening(Message, frozen=True, tag=True):
    """The relay accepts clients."""


class Report(Message, frozen=True, tag=True):
    """What a relay counts by itself: since its last report, but for the first two."""

    connections: int
    """Of clients, open now."""
    open_handshakes: int
    """TLS handshakes under way."""
    denied: dict[str, int]
    refused_unread: dict[str, int]
    handshakes: dict[str, int]
    lag: list[int]
    """Counts of the histogram of the loop's lag."""
    lag_s: float
    """Sum of the lag, in seconds."""
    stalls: list[int]
    """Counts of the histogram of streams' stalls."""
    stalls_s: float
    """Sum of them, in seconds."""


FromRelay = (
    Arrived
    | e.PrefillFinished
    | e.FirstToken
    | e.TokensObserved
    | e.LegFailed
    | e.ResumeReady
    | e.ResumeFailed
    | e.DeadlinePassed
    | Over
    | Question
    | Listening
    | Report
)

# To a relay


class Welcome(Message, frozen=True, tag=True):
    """Its first message: which numbers it gives to its requests."""

    first: int
    step: int


class FleetInForce(Message, frozen=True, tag=True):
    """The fleet file as it is in force from now on, as JSON. Keys and certificates are read again by the relay."""

    document: str
    urls: list[str]
    """Of all its engines."""


class Judgement(Message, frozen=True, tag=True):
    """The answer to a question."""

    number: int
    refusal: Refusal | None


class EngineReachable(Message, frozen=True, tag=True):
    """An engine may be named in commands from now on."""

    engine: str
    url: str


class EngineGone(Message, frozen=True, tag=True):
    """An engine is named no more."""

    engine: str


class Readiness(Message, frozen=True, tag=True):
    """Why nothing can be served (empty: it can), and why no request is let in (None: they are)."""

    reason: str
    refusing: Refusal | None
    reduced: bool
    """Whether engines of one role serve both."""


class Drain(Message, frozen=True, tag=True):
    """Accept nothing new, let requests finish for so many seconds, and end."""

    seconds: float


class Hurry(Message, frozen=True, tag=True):
    """End them at once."""


ToRelay = (
    c.Wait
    | c.StartPrefill
    | c.StartDecode
    | c.StartWhole
    | c.Resume
    | c.Refuse
    | c.Abort
    | Welcome
    | FleetInForce
    | Judgement
    | EngineReachable
    | EngineGone
    | Readiness
    | Drain
    | Hurry
)

Batch = Sequence[Any]
Read = Callable[[memoryview], Batch]

read_from_relay: Read = msgspec.msgpack.Decoder(list[tuple[int, FromRelay]]).decode
"""A batch of (seen, message)."""
read_to_relay: Read = msgspec.msgpack.Decoder(list[ToRelay]).decode
"""A batch of messages."""
_encode = msgspec.msgpack.Encoder().encode


def frame(batch: Batch) -> bytes:
    """The bytes of a batch."""
    data = _encode(batch)
    return len(data).to_bytes(LENGTH_BYTES, "big") + data


class Frames:
    """Cuts a stream of bytes into batches."""

    __slots__ = ("_buffer", "_read")

    def __init__(self, read: Read) -> None:
        self._read = read
        self._buffer = b""

    def feed(self, data: bytes) -> list[Batch]:
        """The batches that are whole now."""
        if self._buffer:
            data = self._buffer + data
        batches, at, end, view = [], 0, len(data), memoryview(data)
        while end - at >= LENGTH_BYTES:
            start = at + LENGTH_BYTES
            stop = start + int.from_bytes(view[at:start], "big")
            if stop > end:
                break
            batches.append(self._read(view[start:stop]))
            at = stop
        self._buffer = data[at:] if at < end else b""
        return batches
