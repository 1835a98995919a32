"""What is wrong with engines and pairs, in words and numbers, for a terminal."""

from collections.abc import Sequence
from typing import Any

from narwhal.diagnose.drains import standing_words

Json = dict[str, Any]
SHOWN = 12
"""Changes that `narwhal why` tells, the newest last."""
TOLD = frozenset(
    (
        *("ejected", "readmitted", "refused", "suspected", "probation", "recovered", "alarm", "out", "in"),
        *("draining", "drained", "undrained", "pinned", "unpinned"),
    )
)
"""Changes that explain something; questions and answers between are in the journal."""


def standing_lines(state: Json, changes: Sequence[Json], now_t: float) -> list[str]:
    """What is reduced, why engines are out or slow, and the changes that led there; empty when all is well."""
    lines = [f"degraded: {state['degraded']}"] if state["degraded"] else []
    lines += [
        standing_words(engine, f" since {engine['since_s']:.0f} s")
        for engine in state["engines"]
        if engine["state"] != "live" or engine["probation"]
    ]
    told = [change for change in changes if change["change"] in TOLD]
    if told:
        lines += [*([""] if lines else []), "what changed, the latest last:"]
    for change in told[-SHOWN:]:
        lines.append(f"  {max(now_t - change['t'], 0.0):.0f} s ago  {change_words(change)}")
    return lines


def change_words(change: Json) -> str:
    """A change of an engine or a pair, in words."""
    who = change.get("engine") or f"pair {change['producer']} > {change['consumer']}"
    return f"{who} {change['change']}: {change['reason']}"


def links_lines(document: Json) -> list[str]:
    """The `Links` document as a table."""
    canary = document["canary"]
    said = f"armed, {canary['prompt_tokens']} tokens" if canary["armed"] else "not armed: KV is not compared"
    rows = document["links"]
    lines = [f"canary    {said}"]
    if not rows:
        return [*lines, "no pair yet"]
    lines += [
        "",
        f"{'producer':<14}{'consumer':<14}{'state':<10}{'handoffs':>9}{'KV':>10}{'mean':>10}{'failed':>8}"
        f"{'tried':>9}  {'canaries':<20}transport",
    ]
    for row in rows:
        mark = "" if row["in_use"] else "*"
        lines.append(
            f"{row['producer']:<14}{row['consumer'] + mark:<14}{row['state']:<10}{row['handoffs']:>9}"
            f"{_size(row['bytes']):>10}{_ms(row['mean_s']):>10}{row['failures']:>8}{_ago(row['tried_s']):>9}"
            f"  {' '.join(row['canaries']) or '–':<20}{row['transport'] or '–'}"
        )
        if row["reason"]:
            lines.append(f"    {row['reason']}")
    if not all(row["in_use"] for row in rows):
        lines.append("* not in use by the present roles")
    return lines


def _size(nbytes: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= size:
            return f"{nbytes / size:.1f} {unit}"
    return f"{nbytes} B"


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1e3:.1f} ms"


def _ago(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds:.0f} s"
