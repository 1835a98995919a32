"""What is shown live: four parts, each sent when it is another than before (schema: `schemas/live/v1.json`)."""

from collections import Counter
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from narwhal.control.link import Link
from narwhal.control.links import in_use
from narwhal.control.records import Decision
from narwhal.control.state import Pool
from narwhal.router.rows import ChangeRow, PairRow

if TYPE_CHECKING:
    from narwhal.router.shell import Shell

MOVES = 8
"""Decisions that moved engines, and changes, that are told."""
HELD = 3
"""Decisions that were held."""


class StatePart(msgspec.Struct, frozen=True, tag_field="part", tag="state"):
    """How the router and its engines are. Sent with each tick."""

    version: str
    """Of the router."""
    now_t: float
    """Present time on the router's clock, in seconds; every `t` is on the same."""
    requests: int
    """Requests in the router: waiting and running."""
    ttft_s: float
    """Target of the SLO, in seconds."""
    tpot_s: float
    """Target of the SLO, in seconds."""
    attainment: float
    """Share of offered requests that is to be within both."""
    state: dict[str, Any]
    """The `RouterState`."""


class DecisionsPart(msgspec.Struct, frozen=True, tag_field="part", tag="decisions"):
    """The latest decisions, the newest last."""

    moves: list[Decision]
    """Those that moved engines, or would have (`advised`)."""
    held: list[Decision]
    """Those that were held."""


class ChangesPart(msgspec.Struct, frozen=True, tag_field="part", tag="changes"):
    """The latest changes of engines and pairs, the newest last."""

    changes: list[ChangeRow | PairRow]


class Pair(msgspec.Struct, frozen=True):
    """A directed pair that is not as the others."""

    producer: str
    consumer: str
    state: Literal["in", "out", "doubtful"]
    """As in `Links`; `in`: it carries handoffs, over another transport than most."""
    reason: str
    """Why it is out; empty: it is not."""
    transport: str
    """How KV moves; empty: not told."""


class LinksPart(msgspec.Struct, frozen=True, tag_field="part", tag="links"):
    """How pairs are. Each prefill engine has one with each decode engine; those that are not listed carry handoffs."""

    transport: str
    """How KV moves over most of those in use; empty: not told."""
    pairs: list[Pair]


AnyPart = StatePart | DecisionsPart | ChangesPart | LinksPart


def decisions_part(shell: "Shell") -> DecisionsPart:
    """The latest decisions."""
    kept = list(shell.decisions)
    moves = [decision for decision in kept if decision.outcome in ("moved", "advised")]
    held = [decision for decision in kept if decision.outcome == "held"]
    return DecisionsPart(moves[-MOVES:], held[-HELD:])


def changes_part(shell: "Shell") -> ChangesPart:
    """The latest changes."""
    return ChangesPart(list(shell.changes)[-MOVES:])


def links_part(shell: "Shell") -> LinksPart:
    """The pairs as they are now."""
    pool = shell.control.pool
    told = {
        (producer, consumer.id): link.transport
        for consumer in pool.engines.values()
        for producer, link in consumer.links.items()
        if link.transport and producer in pool.engines and in_use(pool.engines[producer], consumer)
    }
    usual = max(Counter(told.values()).items(), key=lambda kind: (kind[1], kind[0]), default=("", 0))[0]
    listed = {pair for pair, transport in told.items() if transport != usual}
    for found in (pool.severed, pool.doubtful):
        listed |= {(producer, consumer) for producer, consumers in found.items() for consumer in consumers}
    return LinksPart(usual, [_pair(pool, *pair) for pair in sorted(listed)])


def _pair(pool: Pool, producer: str, consumer: str) -> Pair:
    link = pool.engines[consumer].links.get(producer) or Link()
    doubted = consumer in pool.doubtful.get(producer, ())
    return Pair(producer, consumer, "out" if link.out else "doubtful" if doubted else "in", link.reason, link.transport)
