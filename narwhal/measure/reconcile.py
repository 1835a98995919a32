"""Holding what clients saw against what the router wrote down, request by request."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from narwhal.measure.evidence import BenchCheck
from narwhal.measure.outcome import Outcome, Result

Row = Mapping[str, Any]
AGREEING: Mapping[Result, frozenset[str]] = {
    "served": frozenset({"served"}),
    "refused": frozenset({"refused", "failed"}),
    "failed": frozenset({"refused", "failed", "cut"}),
    "cut": frozenset({"cut"}),
    "cancelled": frozenset({"cancelled", "served", "failed", "cut"}),
    "running": frozenset(),
}
"""Outcomes in the journal that agree with what a client saw. A client reads 503 where engines failed; an error event
before the first token is a cut stream to the router; and an answer may end while its client gives up."""
_SHOWN = 3


def request_rows(rows: Sequence[Row]) -> list[Row]:
    """The rows of a journal that are about requests."""
    return [row for row in rows if row.get("type") == "request"]


def reconciled(outcomes: Sequence[Outcome], rows: Sequence[Row]) -> BenchCheck:
    """Whether each request has one row, with the same end and the same tokens."""
    mine = {outcome.id for outcome in outcomes}
    by_id: dict[str, list[Row]] = {}
    for row in request_rows(rows):
        if row["id"] in mine:
            by_id.setdefault(row["id"], []).append(row)
    wrong = [said for outcome in outcomes if (said := _difference(outcome, by_id.get(outcome.id, ())))]
    if not wrong:
        counts = Counter(outcome.result for outcome in outcomes)
        told = ", ".join(f"{count} {result}" for result, count in sorted(counts.items()))
        text = f"{len(outcomes)} requests, as many rows: {told}{_apart(outcomes, by_id)}"
        return BenchCheck(name="reconciled", outcome="passed", message=text)
    more = f"; and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
    text = f"{len(wrong)} of {len(outcomes)} requests differ: {'; '.join(wrong[:_SHOWN])}{more}"
    return BenchCheck(name="reconciled", outcome="failed", message=text)


def alone(outcomes: Sequence[Outcome], rows: Sequence[Row], since_t: float) -> BenchCheck:
    """Whether no request of others arrived since the load began, which is a time on the router's clock."""
    mine = {outcome.id for outcome in outcomes}
    others = sum(row["id"] not in mine and row["arrived_t"] >= since_t for row in request_rows(rows))
    if others:
        text = f"{others} requests of others arrived meanwhile"
        return BenchCheck(name="alone", outcome="failed", message=text)
    return BenchCheck(name="alone", outcome="passed", message="no request of others")


def _apart(outcomes: Sequence[Outcome], by_id: Mapping[str, Sequence[Row]]) -> str:
    """How far times that client and router measured are apart, in the median, in words."""
    words = ""
    for name in ("ttft_s", "tpot_s"):
        rows = ((getattr(outcome, name), by_id[outcome.id][0][name]) for outcome in outcomes if outcome.id in by_id)
        apart = [mine - theirs for mine, theirs in rows if mine is not None and theirs is not None]
        if apart:
            words += f"; {name[:4].upper()} {1e3 * statistics.median(apart):+.2f} ms from the journal's in the median"
    return words


def _difference(outcome: Outcome, rows: Sequence[Row]) -> str:
    """What a client and the journal tell differently; empty: nothing."""
    if not rows:
        # a client that gave up before it was connected was never seen
        return "" if outcome.result == "cancelled" and not outcome.status else f"{outcome.id} has no row"
    if len(rows) > 1:
        return f"{outcome.id} has {len(rows)} rows"
    row = rows[0]
    if row["outcome"] not in AGREEING[outcome.result]:
        return f"{outcome.id} was {outcome.result} to its client and {row['outcome']} in the journal"
    if outcome.result == "served" and row["completion_tokens"] != outcome.tokens:
        return f"{outcome.id} got {outcome.tokens} tokens, and {row['completion_tokens']} in the journal"
    return ""
