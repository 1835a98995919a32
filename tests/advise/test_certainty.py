"""Intervals: what they hold for certain, and that equal seeds give equal ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narwhal.advise.answer import judged, ratio_of
from narwhal.advise.arms import Arm
from narwhal.advise.certainty import Sample, blocks, crossing
from narwhal.advise.document import Interval
from narwhal.advise.study import MARGIN

WHOLE, SPLIT = Arm("colocated", "colocated"), Arm("static:2p2d", "static")
WINDOWS = st.lists(st.integers(0, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))), max_size=40)


@given(WINDOWS)
def test_blocks_lose_no_request(windows: list[tuple[int, int]]) -> None:
    cut = blocks(tuple(windows))
    assert sum(n for n, _ in cut) == sum(n for n, _ in windows)
    assert sum(good for _, good in cut) == sum(good for _, good in windows)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=6))
def test_the_crossing_lies_between_the_rates_that_were_run(shares: list[float]) -> None:
    points = [(1.0 + n, share) for n, share in enumerate(shares)]
    found = crossing(points)
    assert points[0][0] <= found <= points[-1][0]
    below = next((place for place, share in enumerate(shares) if share < 0.9), None)
    if below is not None and below > 0:
        assert points[below - 1][0] <= found <= points[below][0]


def runs(good: int) -> dict[float, dict[int, tuple[tuple[int, int], ...]]]:
    """Two rates, two seeds; `good` of ten in time at the higher one, and a window or two more or less."""
    calm = tuple((10, 10) for _ in range(24))
    return {4.0: {1: calm, 2: calm}, 5.0: {s: tuple((10, good - (n + s) % 3) for n in range(24)) for s in (1, 2)}}


def test_an_arm_beside_itself_is_as_good_without_any_doubt() -> None:
    ratio = ratio_of(Sample({WHOLE: runs(8), SPLIT: runs(8)}), [SPLIT], WHOLE)
    assert (ratio.value, ratio.low, ratio.high) == (1.0, 1.0, 1.0)


def test_a_better_arm_is_better_in_every_resample_and_again_the_same() -> None:
    sample = Sample({WHOLE: runs(3), SPLIT: runs(9)})
    ratio = ratio_of(sample, [SPLIT], WHOLE)
    assert 1 < ratio.low <= ratio.value <= ratio.high
    assert ratio == ratio_of(Sample({WHOLE: runs(3), SPLIT: runs(9)}), [SPLIT], WHOLE)
    assert sample.attainment(WHOLE, 4.0) == 1.0


RATIO = st.floats(0.1, 10)


@given(value=RATIO, below=st.floats(0, 1), above=st.floats(0, 5))
def test_only_what_is_beyond_chance_and_margin_is_judged(value: float, below: float, above: float) -> None:
    ratio = Interval(value=value, low=value * (1 - below), high=value * (1 + above))
    verdict = judged(ratio)
    if value <= 1 or ratio.low <= 1:
        assert verdict != "disaggregate"
    if value >= 1 or ratio.high >= 1:
        assert verdict != "colocate"
    if 1 / (1 + MARGIN) < value < 1 + MARGIN:
        assert verdict == "cannot_tell"


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [
        ((1.3, 1.2, 1.4), "disaggregate"),
        ((1.3, 0.9, 1.7), "cannot_tell"),
        ((1.1, 1.05, 1.15), "cannot_tell"),
        ((0.7, 0.6, 0.8), "colocate"),
        ((0.7, 0.6, 1.1), "cannot_tell"),
    ],
)
def test_verdicts(ratio: tuple[float, float, float], verdict: str) -> None:
    value, low, high = ratio
    assert judged(Interval(value=value, low=low, high=high)) == verdict
