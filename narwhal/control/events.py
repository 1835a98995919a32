"""What happened: the events that `Control.handle` takes.

Every event carries `t`, seconds on one monotonic clock that the driver owns. Requests are numbers that the driver
hands out, rising; engines are ids (`gpu-1/0`). Events hold no prompt and no output, so a file of them is safe to
keep and replays exactly. They are `msgspec.Struct`s: as small and frozen as dataclasses, created ten times faster,
and encodable as tagged JSON (ADR 0002).
"""

from typing import Any, Literal

import msgspec

from narwhal.control.curves import Curves
from narwhal.fleet.model import Priority

Role = Literal["prefill", "decode"]
Leg = Literal["prefill", "decode", "whole"]
"""`whole`: both phases on one engine, without a handoff."""

FailureCause = Literal["connection", "timeout", "overload", "stream", "status", "handoff", "client"]
"""Class of a failure: no connection; deadline; 503; cut or errored stream; other 5xx; KV transfer; 4xx."""

Outcome = Literal["right", "wrong", "leg_1", "leg_2", "reference", "untold"]
"""Of a handoff that was tried: the answer was right (or not compared); it was not the one that the consumer computes
itself; the producer failed; the consumer failed; the consumer's own prefill failed; the router could not try."""

Deadline = Literal["queue", "seat", "retry", "prefill", "first_token", "gap", "resume", "request"]
"""What was waited for: an engine for leg 1; an engine for leg 2; the time of a retry; leg 1's answer; the first token;
the next token; where the text of a stream stands; all."""


class Event(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Base of all events."""

    t: float
    """When it happened, in seconds on the driver's monotonic clock."""


class EngineJoined(Event, frozen=True, tag=True):
    """An engine is part of the fleet from now on. It gets work once a generation of it is admitted."""

    engine: str
    role: Role
    curves: Curves
    measured: bool = False
    """Whether `curves` come from a profile of this engine; False: a prior."""
    pin: Role | None = None
    fingerprint: str = ""
    """Form of its KV, where it is known already."""
    device: str = ""
    """Group of engines that share its card; empty: alone."""


class EngineRetired(Event, frozen=True, tag=True):
    """An engine was taken out of the fleet file. It gets no new work, and leaves once its requests are done."""

    engine: str
    until_t: float
    """When it leaves at the latest; requests that it still has then fail over or end."""


class EngineLeft(Event, frozen=True, tag=True):
    """An engine is gone at once. Its requests fail over; streams that have begun end."""

    engine: str


class EngineRevised(Event, frozen=True, tag=True):
    """The fleet file says other things of an engine that stays. What it is charged with stays as it is."""

    engine: str
    curves: Curves
    measured: bool = False
    pin: Role | None = None
    device: str = ""


class SettingsChanged(Event, frozen=True, tag=True):
    """The settings are others from now on. Requests keep the targets and deadlines that they were let in with."""

    settings: dict[str, Any]
    """All of them: `Settings.document()`."""


class EngineUp(Event, frozen=True, tag=True):
    """An engine answered, healthy, and this is its process generation."""

    engine: str
    generation: str


class EngineDown(Event, frozen=True, tag=True):
    """A look at an engine failed. `hard`: nobody listens there (connection refused), no doubt is possible."""

    engine: str
    cause: FailureCause
    hard: bool = False


class EngineObserved(Event, frozen=True, tag=True):
    """What an engine's metrics say of its load."""

    engine: str
    running: int
    waiting: int
    kv_used_tokens: int
    tokens: int = -1
    """Tokens generated since its process started; -1: not told."""
    intervals: int = 0
    """Decode intervals that it measured since the last look."""
    interval_s: float = 0.0
    """Their mean, in seconds."""
    late_notifications: int = -1
    """Notifications about KV that it had freed already, since its process started; -1: not told."""


class EngineChecked(Event, frozen=True, tag=True):
    """The answer to `CheckEngine`."""

    engine: str
    generation: str
    contract: str
    """Fingerprint of the contract that it runs with; empty: it tells none."""
    problem: str = ""
    """Why it cannot be readmitted: another model, no answer, …; empty: nothing is wrong."""
    form: str = ""
    """Form of its KV: a digest of what any engine tells of it; empty: not told."""
    attested: str = ""
    """Digest of what its sidecar attests of its KV and model; empty: not told. Legs pair between equal ones."""


class PairTried(Event, frozen=True, tag=True):
    """The answer to `TryPair`."""

    number: int
    producer: str
    consumer: str
    outcome: Outcome
    answer: str = ""
    """Digest of what the consumer answered over the handoff."""
    reference: str = ""
    """Digest of what it answered by its own prefill; empty: it was not asked."""
    seconds: float = 0.0
    """From sending leg 2 to its first token."""
    bytes: int = 0
    """Bytes that the consumer counted as transferred meanwhile; 0: not told."""
    transport: str = ""
    """How KV moves, as leg 1's answer says it."""


class CanaryArmed(Event, frozen=True, tag=True):
    """A prompt was found whose answer tells right KV from wrong, or none was."""

    prompt_tokens: int
    """Its length; 0: there is none, and no canary is sent."""


class DrainSet(Event, frozen=True, tag=True):
    """The operator drains engines, or ends their drains: all of them, or none."""

    engines: tuple[str, ...]
    on: bool
    until_t: float = -1.0
    """When what they still have is served elsewhere or ended; -1: it may take as long as it needs."""
    stays: bool = False
    """Whether the drain outlives the process; otherwise it ends with the readmission of the next one."""
    moves: bool = False
    """Whether engines that stay may be given the role which would fall below its floor."""


class ReadmitRequested(Event, frozen=True, tag=True):
    """The operator wants engines back: drains end, and those that are out are tried at their next healthy look."""

    engines: tuple[str, ...]


class PinSet(Event, frozen=True, tag=True):
    """The operator binds an engine to a role, or frees it (None). The fleet file's word counts again once it changes.

    An engine of the other role is moved, guarded like the controller's own moves; held, the pin stays as it was.
    """

    engine: str
    pin: Role | None


class RequestArrived(Event, frozen=True, tag=True):
    """A request passed the door."""

    request: int
    prompt_tokens: int
    """Length of the prompt; an estimate until leg 1 tells."""
    max_tokens: int
    """Most tokens it may produce."""
    whole: bool = False
    """It cannot be split over two legs (n > 1, a list of prompts): one engine serves it."""
    tenant: str = "default"
    model: str = ""
    started_t: float = -1.0
    """When its first byte arrived, when that is earlier than `t`; TTFT counts from there."""
    priority: Priority | None = None
    """What it asks for; None: its tenant's."""
    resumable: bool = False
    """Whether its stream can go on on another engine: what comes follows from its tokens alone."""


class PrefillFinished(Event, frozen=True, tag=True):
    """Leg 1 answered; its KV waits on the producer under a lease."""

    request: int
    prompt_tokens: int
    """True length of the prompt, from usage; 0: not told."""
    generation: str = ""
    """The producer's generation, as its answer names it; empty: not told."""


class FirstToken(Event, frozen=True, tag=True):
    """The first generated token left the router."""

    request: int


class TokensObserved(Event, frozen=True, tag=True):
    """Tokens that reached the router since the last such event, in one batch."""

    requests: tuple[int, ...]
    tokens: tuple[int, ...]
    """Tokens for each request of `requests`, in the same order."""


class RequestFinished(Event, frozen=True, tag=True):
    """The last byte of an answer came from the engine."""

    request: int
    completion_tokens: int
    """Tokens produced, from usage where it was there."""
    prompt_tokens: int = 0
    """True length of the prompt, from usage; 0: not told."""


class LegFailed(Event, frozen=True, tag=True):
    """A leg ended without its answer."""

    request: int
    leg: Leg
    engine: str
    cause: FailureCause
    visible: bool = False
    """Whether the client has seen a token of this leg."""
    status: int = 0
    """HTTP status of the engine; 0: none came."""


class ResumeReady(Event, frozen=True, tag=True):
    """The answer to `Resume`: the stream can go on, from its prompt and the tokens that its client has."""

    request: int
    prompt_tokens: int
    """Both together."""
    max_tokens: int
    """Most tokens that it may still produce."""


class ResumeFailed(Event, frozen=True, tag=True):
    """The answer to `Resume`: it is not known how the stream goes on."""

    request: int
    engine: str
    """The engine that was asked, when it did not tell; empty: the stream cannot go on at all."""
    reason: str


class RequestCancelled(Event, frozen=True, tag=True):
    """The client left. The driver has already aborted its legs."""

    request: int


class DeadlinePassed(Event, frozen=True, tag=True):
    """Something that a command set a deadline for did not come."""

    request: int
    what: Deadline


class Tick(Event, frozen=True, tag=True):
    """Time passed; at least one each step of the role controller. Costs nothing per request."""


class HoldSet(Event, frozen=True, tag=True):
    """The operator freezes role moves, or lets them go on."""

    on: bool
    reason: str = ""


class MoveRequested(Event, frozen=True, tag=True):
    """The operator asks for a role; guarded like the controller's own moves."""

    engine: str
    role: Role


class SwapRequested(Event, frozen=True, tag=True):
    """The operator asks two engines to exchange roles, in one decision."""

    a: str
    b: str


class RoleMoved(Event, frozen=True, tag=True):
    """The role driver carried a `MoveRole` out."""

    engine: str
    role: Role
    epoch: int


class MoveFailed(Event, frozen=True, tag=True):
    """The role driver could not carry a `MoveRole` out; the engine keeps its role."""

    engine: str
    role: Role
    epoch: int
    reason: str


class LeaseChanged(Event, frozen=True, tag=True):
    """The router's lease is proven, or is not any more: then roles, pins, holds and admitted generations are frozen."""

    proven: bool


AnyEvent = (
    EngineJoined
    | EngineRetired
    | EngineLeft
    | EngineRevised
    | SettingsChanged
    | EngineUp
    | EngineDown
    | EngineObserved
    | EngineChecked
    | PairTried
    | CanaryArmed
    | DrainSet
    | ReadmitRequested
    | PinSet
    | RequestArrived
    | PrefillFinished
    | FirstToken
    | TokensObserved
    | RequestFinished
    | LegFailed
    | ResumeReady
    | ResumeFailed
    | RequestCancelled
    | DeadlinePassed
    | Tick
    | HoldSet
    | MoveRequested
    | SwapRequested
    | RoleMoved
    | MoveFailed
    | LeaseChanged
)
