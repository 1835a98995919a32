"""Figures of a point: what its scored requests came to, and how well the load generator did."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from narwhal.fleet.model import Slo
from narwhal.measure.evidence import BenchFigures, ClientFacts, Quantiles
from narwhal.measure.judging import meets, score
from narwhal.measure.outcome import Outcome


def quantiles(values: Iterable[float | None]) -> Quantiles | None:
    """How values are spread; None of none. A quantile is the smallest value that so large a share does not exceed."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return None
    p50, p90, p99 = (known[min(int(share * len(known)), len(known) - 1)] for share in (0.5, 0.9, 0.99))
    return Quantiles(count=len(known), mean=sum(known) / len(known), p50=p50, p90=p90, p99=p99, max=known[-1])


def figures(outcomes: Sequence[Outcome], slo: Slo, seconds: float) -> BenchFigures:
    """What scored requests came to, over the `seconds` that they were sent in."""
    scored = score(outcomes, slo)
    kinds: dict[str, list[bool]] = defaultdict(list)
    for outcome in outcomes:
        kinds[outcome.planned.kind].append(meets(outcome, slo))
    return BenchFigures(
        offered=scored.offered,
        served=scored.served,
        refused=scored.refused,
        failed=scored.failed,
        cut=scored.cut,
        cancelled=scored.cancelled,
        attained=scored.attained,
        attainment=scored.attainment,
        offered_rps=scored.offered / seconds,
        goodput_rps=scored.attained / seconds,
        output_tokens_per_s=sum(outcome.tokens for outcome in outcomes) / seconds,
        ttft_s=quantiles(outcome.ttft_s for outcome in outcomes),
        tpot_s=quantiles(outcome.tpot_s for outcome in outcomes),
        gap_s=quantiles(outcome.gap_s for outcome in outcomes),
        by_kind={kind: sum(met) / len(met) for kind, met in sorted(kinds.items())},
    )


def client_facts(
    outcomes: Sequence[Outcome],
    streams_max: int,
    cpu_s: float,
    *,
    waited_share: float | None = None,
    stall_max_s: float | None = None,
) -> ClientFacts:
    """How well the load generator did, from all outcomes of its load and what that took.

    `cpu_s`: CPU time of its process; `waited_share`: share of the time in which it was ready to run and had no core;
    `stall_max_s`: longest time that it did not get to run. None: that is not known.
    """
    lags = quantiles(outcome.lag_s for outcome in outcomes)
    tokens = sum(outcome.tokens for outcome in outcomes)
    seconds = max((outcome.ended_s or 0.0 for outcome in outcomes), default=0.0)
    return ClientFacts(
        sent=len(outcomes),
        lag_p50_s=lags.p50 if lags else 0.0,
        lag_p99_s=lags.p99 if lags else 0.0,
        lag_max_s=lags.max if lags else 0.0,
        streams_max=streams_max,
        tokens_per_s=tokens / seconds if seconds else 0.0,
        cpu_share=cpu_s / seconds if seconds else 0.0,
        cpu_us_per_token=1e6 * cpu_s / tokens if tokens else None,
        waited_share=waited_share,
        stall_max_s=stall_max_s,
    )
