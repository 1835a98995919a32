"""What the router says about pairs and about what changed: the documents `Links` and `Changes`."""

from typing import TYPE_CHECKING, Literal

import msgspec

from narwhal.control.link import Link
from narwhal.control.links import in_use
from narwhal.control.state import Engine
from narwhal.router.rows import ChangeRow, PairRow

if TYPE_CHECKING:
    from narwhal.router.shell import Shell


class CanaryState(msgspec.Struct, frozen=True):
    """Whether KV is compared in the background."""

    armed: bool
    prompt_tokens: int
    """Length of its prompt; 0: unarmed."""


class LinkState(msgspec.Struct, frozen=True):
    """One directed pair. Figures are since the router's start; times in seconds."""

    producer: str
    consumer: str
    in_use: bool
    """Whether requests are handed over here by the present roles."""
    state: Literal["in", "out", "doubtful", "idle"]
    """`out`: it carries no handoffs; `doubtful`: it failed within the last minute, others are preferred; `idle`: one of
    its engines has no work now."""
    reason: str
    """Why it is out; empty: it is not."""
    since_s: float | None
    """Since when it is out or in again; null: it always was in."""
    handoffs: int
    """Handoffs of requests that were answered."""
    bytes: int
    """KV of their prompts by the profile, and what canaries were seen to move."""
    mean_s: float | None
    """Mean time from sending leg 2 to the first token of a stream; null: there was none."""
    failures: int
    """Handoffs, probes and canaries that failed."""
    canaries: list[str]
    """Outcomes of the last three, the newest last: `right`, `wrong`."""
    tried_s: float | None
    """How long ago a probe or canary ended; null: there was none."""
    transport: str
    """How KV moves, as the engines say it; empty: not told."""


class Links(msgspec.Struct, frozen=True):
    """The matrix of directed pairs."""

    apiVersion: Literal["narwhal/v1"]  # noqa: N815
    kind: Literal["Links"]
    canary: CanaryState
    links: list[LinkState]
    """Pairs that were used or tried, and all that are in use; by producer and consumer."""


class Changes(msgspec.Struct, frozen=True):
    """The latest changes of engines and pairs, the newest last."""

    apiVersion: Literal["narwhal/v1"]  # noqa: N815
    kind: Literal["Changes"]
    now_t: float
    """Present time on the router's clock, in seconds; `t` of a change is on the same."""
    changes: list[ChangeRow | PairRow]


def links(shell: "Shell") -> Links:
    """The matrix as it is now."""
    engines = shell.control.pool.engines
    rows: list[LinkState] = []
    for producer_id, producer in sorted(engines.items()):
        for consumer_id, consumer in sorted(engines.items()):
            link = consumer.links.get(producer_id)
            used = producer_id != consumer_id and in_use(producer, consumer)
            if link is not None or used:
                rows.append(_row(shell, producer, consumer, link or Link(), used=used))
    tokens = shell.control.health.canaries.prompt_tokens
    return Links("narwhal/v1", "Links", CanaryState(tokens > 0, tokens), rows)


def _row(shell: "Shell", producer: Engine, consumer: Engine, link: Link, *, used: bool) -> LinkState:
    now, doubtful = shell.now(), shell.control.pool.doubtful
    state: Literal["in", "out", "doubtful", "idle"] = "out" if link.out else "in"
    if not (link.out or (producer.live and consumer.live)):
        state = "idle"
    elif not link.out and consumer.id in doubtful.get(producer.id, ()):
        state = "doubtful"
    return LinkState(
        producer=producer.id,
        consumer=consumer.id,
        in_use=used,
        state=state,
        reason=link.reason,
        since_s=_ago(now, link.since_t),
        handoffs=link.handoffs,
        bytes=link.tokens * producer.curves.kv_bytes_per_token + link.bytes,
        mean_s=link.seconds / link.timed if link.timed else None,
        failures=link.failures,
        canaries=link.canaries,
        tried_s=_ago(now, link.tried_t),
        transport=link.transport,
    )


def changes(shell: "Shell") -> Changes:
    """What changed lately."""
    return Changes("narwhal/v1", "Changes", shell.now(), list(shell.changes))


def _ago(now: float, t: float) -> float | None:
    return max(now - t, 0.0) if t > float("-inf") else None
