"""One run judged against another, point by point and figure by figure."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from narwhal.report.bootstrap import (
    FEWEST_BLOCKS,
    RESAMPLES,
    Interval,
    Statistic,
    Values,
    Weights,
    block_length,
    intervals,
    resampled,
    share_of,
    widened,
)
from narwhal.report.document import ComparedPoint, Comparison, Difference, Verdict
from narwhal.report.taken import Run, Seen, Taken

CONFIDENCE = 0.95
"""Of all intervals of a point together."""
FEWEST = 20
"""Requests that an attainment needs."""
FEWEST_BEYOND = 5
"""Values beyond a quantile that it needs: resamples of the largest few say nothing of larger ones."""
TIMES = ("ttft", "tpot", "gap")
SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
Requests = Sequence[Seen]


@dataclass(frozen=True, slots=True)
class _Figure:
    """A figure of both loads that an interval can be drawn for, or why none can."""

    name: str
    here: Statistic
    there: Statistic
    why: str


def compare(here: Run, there: Run, seed: int = 1) -> Comparison:
    """Judge `here` against `there`. Equal seeds give equal intervals; exchanged runs give the exchanged verdicts."""
    mine, other = _by_name(here), _by_name(there)
    return Comparison(
        here=here.name,
        there=there.name,
        confidence=CONFIDENCE,
        resamples=RESAMPLES,
        seed=seed,
        points=[_point(name, one, other[name], seed) for name, one in mine.items() if name in other],
        only_here=[name for name in mine if name not in other],
        only_there=[name for name in other if name not in mine],
    )


def _by_name(run: Run) -> dict[str, Taken]:
    """The points of a run: of each name the one that counts, else the last."""
    found: dict[str, Taken] = {}
    for one in run.taken:
        name = f"{one.point.point} {one.point.policy}" if one.point.source == "simulate" else one.point.point
        if one.counts or name not in found or not found[name].counts:
            found[name] = one
    return found


def _point(name: str, here: Taken, there: Taken, seed: int) -> ComparedPoint:
    why = _incomparable(here, there)
    if why:
        return ComparedPoint(point=name, verdict="cannot tell", why=why, paired=False, block=0, differences=[])
    paired = _same_requests(here.requests, there.requests)
    block = max(map(_block, (here.requests, there.requests)))
    differences = _differences(here, there, paired, block, f"{seed}:{name}")
    verdict, why = _whole(differences)
    if _traffic(here) != _traffic(there):
        verdict, why = "cannot tell", "the two declare other traffic, so the load differs and not only the fleet"
    return ComparedPoint(point=name, verdict=verdict, why=why, paired=paired, block=block, differences=differences)


def _incomparable(here: Taken, there: Taken) -> str:
    """Why two measurements cannot be compared at all; empty: they can."""
    if not here.counts or not there.counts:
        return (
            "figures of "
            + " and ".join(words for one, words in ((here, "this run"), (there, "the other")) if not one.counts)
            + " do not count"
        )
    if here.point.source != there.point.source:
        return "measured by different tools, which define their figures otherwise"
    if not here.requests or not there.requests:
        return "there are no records of single requests to draw from"
    return ""


def _same_requests(here: Requests, there: Requests) -> bool:
    """Whether both loads planned the same requests at the same times."""
    plans = [[(one.planned_s, one.prompt_tokens, one.max_tokens) for one in each] for each in (here, there)]
    return plans[0] == plans[1]


def _block(requests: Requests) -> int:
    """The longest block that any of the figures asks for."""
    series = [[float(one.met) for one in requests if one.met is not None]]
    series += [[value for one in requests if (value := getattr(one, f"{time}_s")) is not None] for time in TIMES]
    return max(map(block_length, series))


def _figures(here: Taken, there: Taken) -> Iterator[_Figure]:
    met = [[bool(one.met) for one in each.requests] for each in (here, there)]
    why = ""
    if here.point.attainment is None or there.point.attainment is None:
        why = "no targets"
    elif _slo(here) != _slo(there):
        why = "other targets"
    elif min(map(len, met)) < FEWEST:
        why = "too few requests"
    yield _Figure("attainment", share_of(met[0]), share_of(met[1]), why)
    for time in TIMES:
        values = [[getattr(one, f"{time}_s") for one in each.requests] for each in (here, there)]
        mine, other = map(Values, values)
        fewest = min(sum(value is not None for value in each) for each in values)
        for name, share in SHARES.items():
            beyond = "too few requests beyond it" if fewest * (1 - share) < FEWEST_BEYOND else ""
            yield _Figure(f"{time}_{name}_s", mine.quantile(share), other.quantile(share), beyond)


def _traffic(one: Taken) -> object:
    return one.evidence.point.traffic if one.evidence is not None else None


def _slo(one: Taken) -> object:
    return one.evidence.slo if one.evidence is not None else one.point.slo


def _differences(here: Taken, there: Taken, paired: bool, block: int, seed: str) -> list[Difference]:
    figures = list(_figures(here, there))
    lengths = (len(here.requests), len(there.requests))
    blocks = min(lengths) // block
    telling = [one for one in figures if not one.why] if blocks >= FEWEST_BLOCKS else []
    outside = (1 - CONFIDENCE) / max(len(telling), 1)  # Bonferroni: what each may miss, for all to hold together
    first = not paired and _key(there) < _key(here)
    draws = _draws(lengths, block, paired, seed, first=first)
    drawn = intervals([one.here for one in telling], [one.there for one in telling], draws, outside)
    ends = {one.name: interval for one, interval in zip(telling, drawn, strict=True)}
    few = "" if telling else "too few independent stretches"
    return [_difference(one, one.why or few, ends.get(one.name), lengths, blocks, outside) for one in figures]


def _key(one: Taken) -> list[float]:
    """Gives two loads an order of their own, so that exchanged runs draw the same resamples."""
    return [seen.planned_s + (seen.ttft_s or 0.0) for seen in one.requests]


def _draws(
    lengths: tuple[int, int], block: int, paired: bool, seed: str, *, first: bool
) -> Iterator[tuple[Weights, Weights]]:
    """Resamples of both loads: the same blocks where they sent the same requests, else each its own."""
    rng, other = random.Random(f"{seed}:0"), random.Random(f"{seed}:1")  # noqa: S311 - reproducible, no secret
    if first:
        rng, other = other, rng
    for _ in range(RESAMPLES):
        weights = resampled(lengths[0], block, rng)
        yield weights, weights if paired else resampled(lengths[1], block, other)


def _difference(
    figure: _Figure,
    why: str,
    interval: Interval | None,
    lengths: tuple[int, int],
    blocks: int,
    outside: float,
) -> Difference:
    here, there = figure.here([1] * lengths[0]), figure.there([1] * lengths[1])
    difference = None if here is None or there is None else here - there
    ends = None if difference is None or interval is None else widened(interval, difference, blocks, outside)
    return Difference(
        figure=figure.name,
        here=here,
        there=there,
        difference=difference,
        low=ends.low if ends is not None else None,
        high=ends.high if ends is not None else None,
        verdict=_verdict(figure.name, ends) if ends is not None else "cannot tell",
        why="" if ends is not None else why or "no values",
    )


def _verdict(figure: str, interval: Interval) -> Verdict:
    if interval.low <= 0 <= interval.high:
        return "cannot tell"
    return "better" if (interval.low > 0) == (figure == "attainment") else "worse"


def _whole(differences: Sequence[Difference]) -> tuple[Verdict, str]:
    """The verdict on a point: attainment's where it can tell, since it alone counts every request that was offered."""
    attainment, times = differences[0], differences[1:]
    if attainment.verdict != "cannot tell":
        return attainment.verdict, "by attainment"
    better, worse = ([one.figure for one in times if one.verdict == told] for told in ("better", "worse"))
    if better and worse:
        return "cannot tell", "some times are better and some are worse"
    if better or worse:
        return "better" if better else "worse", "by " + ", ".join(better or worse)
    return "cannot tell", "every interval that could be drawn holds zero"
