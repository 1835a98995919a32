"""What other tools' results have in common: their requests, and a point made of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from narwhal.report.document import ReportPoint, Source, Spread
from narwhal.report.taken import Seen, Taken, known, quantile

Result = Literal["served", "refused", "failed", "cancelled"]
REFUSALS = (429, 503)
"""Statuses of a refusal."""


@dataclass(frozen=True, slots=True)
class Told:
    """One request as another tool tells it. Times in seconds; None: it does not say."""

    sent_s: float
    """When it was sent, on any clock."""
    result: Result
    prompt_tokens: int = 0
    tokens: int = 0
    ttft_s: float | None = None
    tpot_s: float | None = None
    gap_s: float | None = None
    lag_s: float | None = None
    """How much later than planned it was sent."""


def told_point(
    requests: Sequence[Told], source: Source, name: str, asked_rps: float | None, where: str, started_at: str
) -> Taken:
    """A point of a tool that keeps its requests: the quantiles are made here, as those of our own evidence."""
    ordered = sorted(requests, key=lambda one: one.sent_s)
    counts = {
        result: sum(one.result == result for one in ordered) for result in ("served", "refused", "failed", "cancelled")
    }
    served = [one for one in ordered if one.result == "served"]
    point = ReportPoint(
        point=name,
        source=source,
        standing="unreconciled",
        wrong=[],
        policy="",
        evidence=where,
        started_at=started_at,
        slo=None,
        wanted=None,
        asked_rps=asked_rps,
        kept_rps=sent_rps([one.sent_s for one in ordered]),
        offered=len(ordered),
        cut=0,
        **counts,
        attainment=None,
        goodput_rps=None,
        ttft_s=_spread([one.ttft_s for one in served]),
        tpot_s=_spread([one.tpot_s for one in served]),
        gap_s=_spread([one.gap_s for one in served]),
        moves=None,
        lag_p99_s=quantile(known(one.lag_s for one in ordered), 0.99),
    )
    first_s = ordered[0].sent_s if ordered else 0.0
    seen = [Seen(one.sent_s - first_s, "", one.prompt_tokens, one.tokens, *_times(one), None) for one in ordered]
    return Taken(point, seen)


def _times(one: Told) -> tuple[float | None, float | None, float | None]:
    return (one.ttft_s, one.tpot_s, one.gap_s) if one.result == "served" else (None, None, None)


def _spread(values: Sequence[float | None]) -> Spread | None:
    ordered = known(values)
    if not ordered:
        return None
    p50, p90, p99 = (quantile(ordered, share) for share in (0.5, 0.9, 0.99))
    return Spread(count=len(ordered), p50=p50, p90=p90, p99=p99)


def sent_rps(sent_s: Sequence[float]) -> float | None:
    """Requests per second from the first to the last of these moments, in order; None: there is no such time."""
    if len(sent_s) < 2 or sent_s[-1] <= sent_s[0]:
        return None
    return (len(sent_s) - 1) / (sent_s[-1] - sent_s[0])


def load_name(kind: str, amount: float | None) -> str:
    """A point is called by its load, so that two runs of one tool can be compared."""
    return kind if amount is None else f"{kind}-{amount:g}"
