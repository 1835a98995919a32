"""How certain figures are: a bootstrap over blocks of the traffic.

Runs are cut into blocks of `BLOCK_S` seconds. A resample draws as many blocks as there are, of all seeds, with
replacement, the same ones for every arrangement, as they served the same traffic. From each come attainment at every
rate that was run, and the rate at which it falls through 90 %, between two rates that were run; where it does not fall,
the last rate stands. Intervals are the middle 95 % of the resamples.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from narwhal.advise.arms import Arm
from narwhal.advise.runs import Counts
from narwhal.simulate import TARGET, WINDOW_S

BLOCK_S = 30.0
"""Long enough for a queue or a batch to fill or drain."""
RESAMPLES = 1000
_BLOCK = round(BLOCK_S / WINDOW_S)

Runs = Mapping[float, Mapping[int, Counts]]
"""Counts of an arm's runs, by rate and seed."""
Draw = Sequence[tuple[int, int]]
"""Blocks of a resample: the place of a seed, and of a block in it."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure, and where it lies with 95 % certainty."""

    value: float
    low: float
    high: float


def blocks(counts: Counts) -> list[tuple[int, int]]:
    """Windows summed to blocks; a shorter one at the end belongs to the one before it."""
    starts = range(0, max(len(counts) - _BLOCK + 1, 1), _BLOCK)
    ends = [*list(starts)[1:], len(counts)]
    return [
        (sum(n for n, _ in counts[start:end]), sum(good for _, good in counts[start:end]))
        for start, end in zip(starts, ends, strict=True)
    ]


class Sample:
    """All runs of some arms, ready to be drawn from."""

    def __init__(self, runs: Mapping[Arm, Runs]) -> None:
        self._arms = {
            arm: [
                (rate, [blocks(by_seed[seed]) for seed in sorted(by_seed)]) for rate, by_seed in sorted(rates.items())
            ]
            for arm, rates in runs.items()
        }
        every = [seeds for rates in self._arms.values() for _, seeds in rates]
        self.seeds = max((len(seeds) for seeds in every), default=0)
        self.blocks = min((len(cut) for seeds in every for cut in seeds), default=0)
        """Blocks of one run."""
        rng = random.Random(0)  # noqa: S311 - reproducible, no secret
        whole = [(seed, block) for seed in range(self.seeds) for block in range(self.blocks)]
        self._whole: Draw = whole
        self._draws: list[Draw] = [rng.choices(whole, k=len(whole)) for _ in range(RESAMPLES if whole else 0)]

    def attainment(self, arm: Arm, rate_rps: float, draw: Draw | None = None) -> float:
        """Attainment of an arm at a rate that was run."""
        seeds = next(seeds for rate, seeds in self._arms[arm] if rate == rate_rps)
        return _attainment(seeds, self._whole if draw is None else draw)

    def goodput(self, arm: Arm, draw: Draw | None = None) -> float:
        """The rate at which an arm's attainment falls through 90 %."""
        chosen = self._whole if draw is None else draw
        return crossing([(rate, _attainment(seeds, chosen)) for rate, seeds in self._arms[arm]])

    def estimate(self, figure: Callable[[Draw | None], float]) -> Estimate:
        """A figure of all blocks, and of the resamples."""
        values = sorted(figure(draw) for draw in self._draws)
        value = figure(None)
        if not values:
            return Estimate(value, value, value)
        edge = round(0.025 * (len(values) - 1))
        return Estimate(value, min(values[edge], value), max(values[-1 - edge], value))


def _attainment(seeds: Sequence[Sequence[tuple[int, int]]], draw: Draw) -> float:
    offered = good = 0
    for seed, block in draw:
        n, met = seeds[seed % len(seeds)][block]
        offered += n
        good += met
    return good / offered if offered else 1.0


def crossing(points: Sequence[tuple[float, float]]) -> float:
    """Where attainment falls through 90 %, for (rate, attainment) by rate; the first or last rate where it does not."""
    below = next((place for place, (_, share) in enumerate(points) if share < TARGET), None)
    if below is None:
        return points[-1][0]
    if below == 0:
        return points[0][0]
    (low, more), (high, less) = points[below - 1], points[below]
    part = (more - TARGET) / (more - less)
    return math.exp(math.log(low) + part * (math.log(high) - math.log(low)))
