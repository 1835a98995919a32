"""The `Preflight` document: what was checked of a running fleet, with what result."""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from narwhal.documents import Document, Model
from narwhal.fleet.model import Digest

Status = Literal["ok", "FAIL", "SKIP", "WARN"]
Name = Literal[
    "reach", "contract", "launch", "compatible", "profile", "model", "pace", "tokenize",
    "produce", "consume", "transport", "slo", "deadline",
]  # fmt: skip
NAMES: tuple[Name, ...] = (
    "reach", "contract", "launch", "compatible", "profile", "model", "pace", "tokenize",
    "produce", "consume", "transport", "slo", "deadline",
)  # fmt: skip
"""All checks, in the order in which they are told."""
Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0)]


class CheckResult(Model):
    """The result of one check of one subject."""

    name: Name
    """Which check."""
    subject: str
    """What it was made of: an engine's id, `PRODUCER > CONSUMER`, or `fleet`."""
    status: Status
    """`ok`; `FAIL`: it does not do; `WARN`: it works, but not as it should; `SKIP`: it could not be made."""
    reason: str
    """What was seen."""
    next_step: str = ""
    """What to do about it; empty when there is nothing to do."""
    seconds: Seconds = 0.0
    """How long the check took."""


class PairResult(Model):
    """The handoffs of one directed pair of engines."""

    producer: str
    """Engine of leg 1."""
    consumer: str
    """Engine of leg 2."""
    status: Status
    """As in the check `consume` of this pair."""
    handoffs: Count
    """How many were made."""
    prompt_tokens: Count
    """Tokens of each prompt."""
    moved_tokens: Count | None
    """Tokens that the consumer counted as pulled from a peer, over all handoffs; null: it does not count them."""
    moved_bytes: Count | None
    """Bytes that the consumer counted as transferred, over all handoffs; null: it does not count them."""
    leg1_s: list[Seconds]
    """Of each handoff: from sending leg 1 to its answer."""
    first_token_s: list[Seconds]
    """Of each handoff: from sending leg 2 to its first token."""


class TransportResult(Model):
    """A long prompt that was handed over between two idle engines."""

    producer: str
    """Engine of leg 1."""
    consumer: str
    """Engine of leg 2."""
    prompt_tokens: Count
    """Tokens of the prompt."""
    first_token_s: Seconds
    """From sending leg 2 to its first token."""
    moved_bytes: Count | None
    """Bytes that the consumer counted as transferred; null: it does not count them."""
    transfer_s: Seconds | None
    """Time that it counted for the transfer alone; null: it does not count it."""
    transport: Literal["cuda_ipc", "staged", "tcp"] | None
    """What the rate tells: from card to card, through the host's memory, over sockets; null: it does not tell."""


class FirstToken(Model):
    """What `serving.deadlines.first_token_s` should be, and what that follows from."""

    configured_s: Seconds
    """What the fleet file says; 0: no deadline."""
    advised_s: Seconds
    """What it should be at least."""
    pair: str
    """The pair over which the longest prompt takes longest: `PRODUCER > CONSUMER`."""
    short_tokens: Count
    """Tokens of the prompt that every pair handed over."""
    short_s: Seconds
    """Longest time from sending leg 2 to its first token, for such a prompt."""
    long_tokens: Count
    """Tokens of a long prompt that this pair handed over too."""
    long_s: Seconds
    """The same time for it."""
    longest_prompt_tokens: Count
    """Tokens of the longest prompt that the fleet serves."""
    longest_s: Seconds
    """What the pair takes for that, by both measurements."""
    at_once: Count
    """Handoffs that may come to one engine at once: the other engines, times `serving.prefill_in_flight`."""
    busy_s: Seconds
    """What the steps of a busy engine add."""


class Preflight(Document):
    """One run of `narwhal check`."""

    kind: Literal["Preflight"]
    """This is a preflight."""
    fleet: str
    """Name of the fleet."""
    fleet_digest: Digest
    """SHA-256 of the fleet file."""
    narwhal: str
    """Version of Narwhal that checked."""
    at: str
    """UTC time of the start, ISO 8601."""
    seconds: Seconds
    """How long it took."""
    pairing: Literal["all", "ring"]
    """Whether every directed pair was tried, or each engine with the next."""
    repeats: Annotated[int, Field(ge=1)]
    """Handoffs of each pair."""
    only: list[Name]
    """The checks that were asked for; empty: all."""
    versions: dict[str, str]
    """Version of each engine that told it."""
    contracts: dict[str, str]
    """Contract fingerprint of each engine that told it."""
    checks: list[CheckResult]
    """Every check."""
    pairs: list[PairResult]
    """Every pair that was tried."""
    transports: list[TransportResult]
    """The long prompt of every pair that handed over a short one."""
    first_token: FirstToken | None
    """The deadline for first tokens; null: no pair was measured."""
    verdict: Literal["ok", "WARN", "FAIL"]
    """The worst of all checks; one that was skipped counts as ok."""


def verdict(checks: Sequence[CheckResult]) -> Literal["ok", "WARN", "FAIL"]:
    """The worst status of `checks`; a skipped one counts as ok."""
    found = {check.status for check in checks}
    return "FAIL" if "FAIL" in found else "WARN" if "WARN" in found else "ok"
