"""The record of a decision: what the role controller saw, what it weighed, what held it, what it did."""

import msgspec

from narwhal.fleet.model import Role


class Candidate(msgspec.Struct, frozen=True):
    """One split that was scored."""

    prefill: int
    """Prefill engines of the split."""
    decode: int
    """Decode engines of the split."""
    ttft: float
    """Worst projected TTFT over its target."""
    tpot: float
    """Worst projected TPOT over its target."""
    queue: float
    """Projected demand for decode seats over what there is."""
    score: float
    """What the policy compares; lower is better."""


class Guard(msgspec.Struct, frozen=True):
    """A rule or guard that was asked, and what it said."""

    name: str
    """As in the fleet file where it has a key there: `cooldown_s`, `min_prefill`, `pin`, `hold`, …"""
    passed: bool
    value: float
    """What was measured."""
    limit: float
    """What it was compared with."""
    engine: str = ""
    """The engine it is about; empty: the whole fleet."""


class Move(msgspec.Struct, frozen=True):
    """One engine, one role change."""

    engine: str
    source: Role
    target: Role


class Decision(msgspec.Struct, frozen=True):
    """One evaluation of the role controller."""

    id: int
    t: float
    """When, in seconds on the driver's clock."""
    trigger: str
    """`step`, `urgency`, `floor`, `operator`, or `driver` (a move could not be carried out)."""
    policy: str
    prefill: int
    """Live prefill engines before."""
    decode: int
    """Live decode engines before."""
    outcome: str
    """`moved`, `held` (a better split was there, a rule or guard held it), `stay` (none was better), `advised`."""
    reason: str
    """In words, with the numbers that decided."""
    candidates: tuple[Candidate, ...] = ()
    """The current split first."""
    guards: tuple[Guard, ...] = ()
    moves: tuple[Move, ...] = ()
    """Moves that were made, held or advised."""
    inputs: dict[str, float] = {}
    """Named figures the scores came from: offered prefill load, waiting seconds, occupancy, …"""
