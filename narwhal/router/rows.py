"""What stands in the journal: one row a line, tagged by `type` (schema: `schemas/journal/v1.json`)."""

import msgspec

from narwhal.control.records import Decision


class RequestRow(msgspec.Struct, frozen=True, tag="request", omit_defaults=False):
    """One request, at its end. No prompt, no output, no key. Times in seconds; `_t` on the router's monotonic clock."""

    request: int
    id: str
    """As in `x-request-id`."""
    tenant: str
    arrived_t: float
    outcome: str
    """`served`, `refused`, `failed`, `cut` (ended after its first byte), `cancelled` (the client left)."""
    code: str
    """Why it was refused, failed or cut; empty when served."""
    route: str
    """What was asked for: `/v1/completions`, …"""
    stream: bool
    whole: bool
    prompt_tokens: int
    completion_tokens: int
    prefill_engine: str
    decode_engine: str
    retries: int
    prefilled_s: float | None
    """Arrival to leg 1's answer."""
    ttft_s: float | None
    tpot_s: float | None
    total_s: float
    slo_met: bool
    continued: int = 0
    """How often its stream went on on another engine."""
    gap_s: float | None = None
    """Longest time from the loss of an engine to the next token; null: none was lost, or no token came."""
    queued_s: float | None = None
    """Arrival to the sending of its first leg; null: none was sent."""


class ChangeRow(msgspec.Struct, frozen=True, tag="engine"):
    """An engine's standing or role changed: `moved`, or a change of `EngineChanged`."""

    t: float
    engine: str
    change: str
    reason: str
    epoch: int | None = None
    decision: int | None = None


class PairRow(msgspec.Struct, frozen=True, tag="pair"):
    """A directed pair was taken out, or carries handoffs again."""

    t: float
    producer: str
    consumer: str
    change: str
    """`out` or `in`."""
    reason: str


class DecisionRow(msgspec.Struct, frozen=True, tag="decision"):
    """One evaluation of the role controller."""

    decision: Decision


class StartRow(msgspec.Struct, frozen=True, tag="start"):
    """The router started: ties its monotonic clock to the calendar."""

    t: float
    utc: str
    fleet: str
    version: str
    """Of the router."""
    apiVersion: str = "narwhal/v1"  # noqa: N815
    """Of the rows that follow."""


class ReloadRow(msgspec.Struct, frozen=True, tag="reload"):
    """The fleet file was read again and applied. Paths, no values: they may be addresses."""

    t: float
    utc: str
    by: str
    """`SIGHUP`, or who asked by the admin listener."""
    before: str
    """Digest of the fleet file as it was read last."""
    digest: str
    """Digest of the fleet file as it was read now."""
    applied: list[str]
    """Fields and engines that changed."""
    restart: list[str]
    """Fields that only a restart can change."""


AnyRow = RequestRow | ChangeRow | PairRow | DecisionRow | StartRow | ReloadRow
