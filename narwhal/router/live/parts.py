"""What is shown live: four parts, each sent when it is another than before (schema: `schemas/live/v1.json`)."""

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from narwhal.control.link import Link
from narwhal.control.links import in_use
from narwhal.control.records import Decision
from narwhal.control.state import Engine
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


class Pair(msgspec.Struct, frozen=True, array_like=True):
    """One directed pair."""

    producer: str
    consumer: str
    state: Literal["in", "out", "doubtful", "idle"]
    """As in `Links`."""
    in_use: bool
    reason: str
    """Why it is out; empty: it is not."""
    transport: str
    """How KV moves; empty: not told."""


class LinksPart(msgspec.Struct, frozen=True, tag_field="part", tag="links"):
    """Pairs that are in use, and all that are out or doubtful."""

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
    """The pairs as they are now: each prefill engine's with each decode engine, and others that are in trouble."""
    engines, doubtful = shell.control.pool.engines, shell.control.pool.doubtful
    ordered = sorted(engines.items())
    pairs: list[Pair] = []
    for producer_id, producer in ordered:
        doubted = doubtful.get(producer_id, ())
        for consumer_id, consumer in ordered:
            link = consumer.links.get(producer_id)
            used = producer is not consumer and producer.role != consumer.role and in_use(producer, consumer)
            if used or (link is not None and link.out) or consumer_id in doubted:
                pairs.append(_pair(producer, consumer, link, used=used, doubted=consumer_id in doubted))
    return LinksPart(pairs)


def _pair(producer: Engine, consumer: Engine, link: Link | None, *, used: bool, doubted: bool) -> Pair:
    out = link is not None and link.out
    state: Literal["in", "out", "doubtful", "idle"] = "out" if out else "doubtful" if doubted else "in"
    if not (out or (producer.live and consumer.live)):
        state = "idle"
    reason, transport = ("", "") if link is None else (link.reason, link.transport)
    return Pair(producer.id, consumer.id, state, used, reason, transport)
