"""Intervals for the difference between two loads, from their requests alone: a circular block bootstrap.

Requests of one load are not independent: those that wait in the same queue share its fate. Drawing single requests
would take a bad half minute for many bad requests and make intervals too narrow. So neighbours are drawn together, in
blocks on a circle (Politis and Romano 1992, "A circular block-resampling procedure for stationary data"), as long as
the correlation in the data asks for (Politis and White 2004, "Automatic block-length selection for the dependent
bootstrap", as corrected by Patton, Politis and White 2009). Where both loads sent the same requests the same blocks are
drawn from both, which takes out of the difference what they share. Ends are the percentiles of the resampled
differences, moved away from the difference by what few blocks make them too narrow: Student's t over the normal
quantile, and sqrt(k / (k - 1)) for k blocks, as Hesterberg 2015 ("What teachers should know about the bootstrap") has
it.

What no interval from two runs can hold: how much two runs of the same thing differ, on another day or machine.
"""

import math
import random
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, compress
from statistics import NormalDist, fmean

RESAMPLES = 2000
FEWEST_BLOCKS = 6
"""With fewer blocks than this nothing is drawn: too few to tell how they vary."""
Weights = Sequence[int]
"""How often a resample has each request."""
Statistic = Callable[[Weights], float | None]
"""A figure of a resample; None: it has none."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Ends of an interval of a difference."""

    low: float
    high: float


def block_length(values: Sequence[float]) -> int:
    """How many neighbours to draw together, by the correlation of `values`, which are in order of time.

    Politis and White 2004, section 3.2, with the constant of the circular bootstrap: (2 G^2 / D)^(1/3) n^(1/3), where G
    and D come from the autocovariances up to the lag from which they are no more than chance, under a flat-top window.
    """
    n = len(values)
    mean = fmean(values) if n else 0.0
    centred = [value - mean for value in values]
    lags = math.ceil(math.sqrt(n)) + _in_a_row(n) if n else 0
    covariances = [sum(map(float.__mul__, centred[lag:], centred)) / n for lag in range(min(lags + 1, n))]
    if n < 4 or covariances[0] <= 1e-18 * mean * mean:
        return 1
    last = min(2 * _last_correlated(covariances, n), len(covariances) - 1)
    if last == 0:
        return 1
    windowed = [min(1.0, 2 * (1 - lag / last)) * covariances[lag] for lag in range(last + 1)]
    g = 2 * sum(lag * value for lag, value in enumerate(windowed))
    d = 4 / 3 * (2 * sum(windowed) - windowed[0]) ** 2
    if d <= 0:
        return 1
    return max(1, math.ceil(min(math.cbrt(2 * g * g / d * n), 3 * math.sqrt(n), n / 3)))


def _in_a_row(n: int) -> int:
    """How many autocorrelations in a row must be no more than chance."""
    return max(5, math.ceil(math.sqrt(math.log10(n))))


def _last_correlated(covariances: Sequence[float], n: int) -> int:
    """The lag after which autocorrelations are no more than chance."""
    chance = 2 * math.sqrt(math.log10(n) / n)
    correlated = [abs(value / covariances[0]) > chance for value in covariances]
    row = _in_a_row(n)
    for lag in range(len(covariances) - row):
        if not any(correlated[lag + 1 : lag + 1 + row]):
            return lag
    return max(lag for lag, is_so in enumerate(correlated) if is_so)


def resampled(n: int, block: int, rng: random.Random) -> Weights:
    """How often each of `n` requests comes in a resample of blocks on a circle."""
    starts = [0] * n
    for start in rng.choices(range(n), k=n // block):
        starts[start] += 1
    weights = starts
    if block > 1:  # a request is in each block that began at most `block - 1` before it
        begun = [0, *accumulate(starts[-block + 1 :] + starts)]
        weights = list(map(int.__sub__, begun[block:], begun))
    begin = rng.randrange(n)
    for place in range(begin, begin + n % block):  # what is left, in a shorter block
        weights[place % n] += 1
    return weights


def share_of(met: Sequence[bool]) -> Statistic:
    """The share of the requests for which `met` holds."""
    return lambda weights: sum(compress(weights, met)) / sum(weights)


class Values:
    """A figure of each request, whose quantiles are asked for in many resamples."""

    def __init__(self, values: Sequence[float | None]) -> None:
        order = sorted((value, place) for place, value in enumerate(values) if value is not None)
        self._ordered, self._places = [value for value, _ in order], [place for _, place in order]
        self._weights: Weights = ()
        self._up_to: list[int] = []

    def quantile(self, share: float) -> Statistic:
        """A quantile of the values that are there, as evidence has it."""

        def quantile(weights: Weights) -> float | None:
            if weights is not self._weights:  # other quantiles of the same resample were not asked for yet
                self._weights, self._up_to = weights, list(accumulate(map(weights.__getitem__, self._places)))
            up_to, ordered = self._up_to, self._ordered
            if not up_to or not up_to[-1]:
                return None
            return ordered[min(bisect_right(up_to, int(share * up_to[-1])), len(ordered) - 1)]

        return quantile


def intervals(
    here: Sequence[Statistic],
    there: Sequence[Statistic],
    draws: Iterator[tuple[Weights, Weights]],
    outside: float,
) -> list[Interval | None]:
    """For each pair of figures the interval of `here` less `there` that misses the truth in a share `outside` of runs.

    `draws` are the resamples of both. None: a resample had no figure.
    """
    found: list[list[float | None]] = [[] for _ in here]
    for mine, other in draws:
        for place, (a, b) in enumerate(zip(here, there, strict=True)):
            one, two = a(mine), b(other)
            found[place].append(None if one is None or two is None else one - two)
    return [_interval(values, outside) for values in found]


def _interval(values: Sequence[float | None], outside: float) -> Interval | None:
    """The percentiles, the same number of resamples left out on either side."""
    known = sorted(value for value in values if value is not None)
    if not known or len(known) < len(values):
        return None
    out = int(outside / 2 * len(known))
    return Interval(known[out], known[-1 - out])


def widened(interval: Interval, difference: float, blocks: int, outside: float) -> Interval:
    """An interval by what few blocks make it too narrow."""
    share = 1 - outside / 2
    factor = math.sqrt(blocks / (blocks - 1)) * student(share, blocks - 1) / NormalDist().inv_cdf(share)
    return Interval(
        difference - factor * (difference - interval.low), difference + factor * (interval.high - difference)
    )


def student(share: float, freedom: int) -> float:
    """Quantile of Student's t by its expansion in normal ones (Abramowitz and Stegun 26.7.5)."""
    z = NormalDist().inv_cdf(share)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3
