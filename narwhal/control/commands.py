"""What to do: the commands that `Control.handle` returns, in the order in which they are to be carried out.

A command that starts or queues a request replaces what ran for it: the driver aborts the old leg without reporting
it. An answer that is buffered for its client reports no `FirstToken`, and its first-token deadline is not armed.
"""

from typing import Literal

import msgspec

from narwhal.control.events import Deadline, Role
from narwhal.control.records import Decision


class Command(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Base of all commands."""


class Wait(Command, frozen=True, tag=True):
    """The request waits in the router's queue (`queue`), for a decode seat (`seat`), or to be tried again (`retry`).

    Report `DeadlinePassed(what)` at `until`, unless another command for the request came first.
    """

    request: int
    what: Deadline
    until: float
    """Time on the driver's clock, in seconds."""


class StartPrefill(Command, frozen=True, tag=True):
    """Send leg 1 to `engine`; report `PrefillFinished`, `LegFailed`, or at `until` `DeadlinePassed(prefill)`."""

    request: int
    engine: str
    until: float


class StartDecode(Command, frozen=True, tag=True):
    """Send leg 2 to `engine` with the handoff of the last leg 1, once.

    Report `FirstToken`, `RequestFinished`, `LegFailed`, or at `until` `DeadlinePassed(first_token)`.
    """

    request: int
    engine: str
    producer: str
    until: float


class StartWhole(Command, frozen=True, tag=True):
    """Send the whole request to `engine`, without a handoff; reports as for `StartDecode`."""

    request: int
    engine: str
    until: float


class Resume(Command, frozen=True, tag=True):
    """The engine of a stream is lost. Find out with `engine` where its text stands, so that it can go on.

    Report `ResumeReady`, `ResumeFailed`, or at `until` `DeadlinePassed(resume)`. What is started for it next is to
    ask for the rest.
    """

    request: int
    engine: str
    until: float


class Refuse(Command, frozen=True, tag=True):
    """Answer the client with an error; nothing runs for the request. It is over."""

    request: int
    status: int
    """HTTP status: 429 (would miss its target), 502 or 504 (engines failed), 503 (no engine)."""
    code: str
    """Stable word: `prompt`, `queue`, `queue_full`, `queue_timeout`, `decode`, `no_engine`, `upstream`, `timeout`."""
    message: str
    retry_after_s: float = 0.0
    """Seconds after which a retry may pass; 0: none is promised."""


class Abort(Command, frozen=True, tag=True):
    """Abort what runs for the request and end it: an error event if the client has seen a byte, else an answer."""

    request: int
    status: int
    code: str
    message: str


class MoveRole(Command, frozen=True, tag=True):
    """Give `engine` the role; report `RoleMoved` or `MoveFailed` with the same epoch."""

    engine: str
    role: Role
    epoch: int
    decision: int
    """Number of the decision that asked for it."""


class ProbeEngine(Command, frozen=True, tag=True):
    """Look at the engine now, ahead of its turn; report `EngineUp` or `EngineDown`."""

    engine: str


Purpose = Literal["blame", "readmit", "canary"]
"""Why a pair is tried: a request failed on it; an engine comes back; KV is compared, in the background."""


class TryPair(Command, frozen=True, tag=True):
    """Hand a canary's KV from `producer` to `consumer`; report `PairTried` with the same number.

    Where both are one engine it answers a token by itself, without a handoff. A canary is compared with what the
    consumer computes itself.
    """

    number: int
    producer: str
    consumer: str
    purpose: Purpose
    timeout_s: float
    """For each leg, in seconds."""


class CheckEngine(Command, frozen=True, tag=True):
    """Ask an engine for its generation, its contract and its model; report `EngineChecked`."""

    engine: str


class PairChanged(Command, frozen=True, tag=True):
    """A pair was taken out, or carries handoffs again; for the journal and the metrics."""

    producer: str
    consumer: str
    change: Literal["out", "in"]
    reason: str


class EngineChanged(Command, frozen=True, tag=True):
    """An engine's standing changed; for the journal, the metrics and `narwhal why`."""

    engine: str
    change: str
    """`joined`, `leaving`, `left`; `suspected` (a look failed), `questioned` (a handoff failed, probes decide),
    `cleared`; `probation` (slow), `recovered`; `ejected`, `refused` (not readmitted), `readmitted`; `alarm` (wrong KV
    is to be feared); `draining`, `drained` (it can be stopped now), `undrained`; `pinned`, `unpinned`."""
    reason: str


class Decided(Command, frozen=True, tag=True):
    """An evaluation of the role controller; for the journal, the metrics and `narwhal why`."""

    decision: Decision


AnyCommand = (
    Wait
    | StartPrefill
    | StartDecode
    | StartWhole
    | Resume
    | Refuse
    | Abort
    | MoveRole
    | ProbeEngine
    | TryPair
    | CheckEngine
    | EngineChanged
    | PairChanged
    | Decided
)
