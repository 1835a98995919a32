"""Judging outcomes: attainment over what was offered, and how long a fleet needs to adapt to a turn."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil

from narwhal.fleet.model import Slo
from narwhal.measure.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Score:
    """What a load came to. `offered` is the sum of the five results after it."""

    offered: int
    served: int
    refused: int
    failed: int
    cut: int
    cancelled: int
    attained: int
    """Served requests that met both targets."""
    attainment: float | None
    """`attained` over `offered`; None when nothing was offered."""
    ttft_p50_s: float | None
    ttft_p90_s: float | None
    tpot_p50_s: float | None
    tpot_p90_s: float | None
    lag_max_s: float
    """Largest lateness of the generator itself; the load is only as open as this is small."""


def meets(outcome: Outcome, slo: Slo) -> bool:
    """Whether a request was served within both targets. An answer of one token has no gap to miss."""
    if outcome.result != "served" or outcome.ttft_s is None:
        return False
    return outcome.ttft_s <= slo.ttft_for(outcome.planned.prompt_tokens) and (outcome.tpot_s or 0.0) <= slo.tpot_s


def score(outcomes: Sequence[Outcome], slo: Slo) -> Score:
    """Count and judge outcomes; those still running count as offered and as nothing else."""
    results = Counter(outcome.result for outcome in outcomes)
    attained = sum(meets(outcome, slo) for outcome in outcomes)
    ttft = sorted(outcome.ttft_s for outcome in outcomes if outcome.ttft_s is not None)
    tpot = sorted(outcome.tpot_s for outcome in outcomes if outcome.tpot_s is not None)
    return Score(
        offered=len(outcomes),
        served=results["served"],
        refused=results["refused"],
        failed=results["failed"],
        cut=results["cut"],
        cancelled=results["cancelled"],
        attained=attained,
        attainment=attained / len(outcomes) if outcomes else None,
        ttft_p50_s=_quantile(ttft, 0.5),
        ttft_p90_s=_quantile(ttft, 0.9),
        tpot_p50_s=_quantile(tpot, 0.5),
        tpot_p90_s=_quantile(tpot, 0.9),
        lag_max_s=max((outcome.lag_s for outcome in outcomes), default=0.0),
    )


def recent_attainment(outcomes: Iterable[Outcome], slo: Slo, since_s: float) -> float | None:
    """Share of the requests that ended at or after `since_s` and met both targets; None when none ended."""
    ended = [outcome for outcome in outcomes if outcome.ended_s is not None and outcome.ended_s >= since_s]
    return sum(meets(outcome, slo) for outcome in ended) / len(ended) if ended else None


def windows(outcomes: Iterable[Outcome], slo: Slo, seconds: float, window_s: float = 5.0) -> list[float | None]:
    """Attainment of the requests that were sent in each window of a load; None where none was sent."""
    count = max(ceil(seconds / window_s), 1)
    sent, met = [0] * count, [0] * count
    for outcome in outcomes:
        place = min(int(outcome.sent_s / window_s), count - 1)
        sent[place] += 1
        met[place] += meets(outcome, slo)
    return [good / all_ if all_ else None for good, all_ in zip(met, sent, strict=True)]


@dataclass(frozen=True, slots=True)
class Adaptation:
    """What a turn of the traffic did to attainment."""

    fell: bool
    """Whether attainment in a window after the turn fell below the level."""
    seconds: float | None
    """From the turn until it was back; None: it never fell, or was not back in time."""


def time_to_adapt(
    outcomes: Sequence[Outcome],
    slo: Slo,
    *,
    turn_s: float,
    until_s: float,
    window_s: float = 5.0,
    level: float = 0.9,
) -> Adaptation:
    """How long attainment needed to be back after a turn of the traffic, if it fell.

    Requests are judged by when they were sent, in windows of `window_s` that lie between the turn and `until_s`, one
    every 0.5 s; those without requests say nothing. Attainment fell with the first window below `level`, and was back
    at the start of the first one after it that attains `level`.
    """
    judged = [(outcome.sent_s, meets(outcome, slo)) for outcome in outcomes]
    fell, start_s = False, turn_s
    while start_s + window_s <= until_s:
        window = [met for sent_s, met in judged if start_s <= sent_s < start_s + window_s]
        attained = sum(window) >= level * len(window)
        if window and fell and attained:
            return Adaptation(True, start_s - turn_s)
        fell = fell or not attained
        start_s += 0.5
    return Adaptation(fell, None)


def _quantile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that at least `share` of the sorted `values` do not exceed; None of none."""
    return values[min(int(share * len(values)), len(values) - 1)] if values else None
