"""Searches find what they are to find, wherever they begin, and ask for no run twice."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narwhal.advise.arms import Arm, splits
from narwhal.advise.case import Case
from narwhal.advise.runs import Job
from narwhal.advise.search import PRECISION, WIDEST, Climb, Search, T, climb, fewest, together

ARMS = [Arm(f"static:{n}p{4 - n}d", "static") for n in (1, 2, 3)]
RATES = st.floats(0.5, 40)


def driven(search: Search[T], holds: Callable[[Job], bool]) -> tuple[T, list[Job]]:
    """What a search comes to, and the runs it took."""
    asked: list[Job] = []
    jobs = next(search)
    while True:
        asked += jobs
        try:
            jobs = search.send([holds(job) for job in jobs])
        except StopIteration as end:
            return end.value, asked


@given(tops=st.lists(RATES, min_size=3, max_size=3), start=st.floats(3, 10))
def test_a_climb_finds_the_highest_rate_that_an_arm_holds(tops: list[float], start: float) -> None:
    limit = dict(zip(ARMS, tops, strict=True))
    found, asked = driven(climb(Case(), ARMS, 1, start), lambda job: job.rate_rps <= limit[job.arm])
    top = max(tops)
    assert len(asked) == len(set(asked))
    assert start / WIDEST <= top
    assert found.held_rps <= top
    if found.failed_rps is not None and found.held_rps:
        assert top < found.failed_rps <= found.held_rps * (1 + PRECISION) * (1 + 1e-9)
    for arm, (held, failed) in found.brackets.items():
        assert held <= limit[arm]
        assert failed is None or limit[arm] < failed
    assert all(limit[arm] >= found.held_rps for arm in found.best)


def test_a_climb_where_nothing_holds_says_so() -> None:
    found, _ = driven(climb(Case(), ARMS, 1, 10.0), lambda job: False)
    assert (found.held_rps, found.best) == (0.0, [])
    assert found.failed_rps is not None


@given(needed=st.integers(1, 64), start=st.integers(1, 200))
def test_the_fewest_engines_are_found_from_anywhere(needed: int, start: int) -> None:
    arm = Arm("reactive", "adaptive")
    search = fewest(lambda n: Case(engines=n), lambda n: [arm], 5.0, 1, (1, 64, start))
    found, asked = driven(search, lambda job: (job.case.engines or 0) >= needed)
    assert found == (needed, arm)
    assert len(asked) == len({job.case.engines for job in asked}) <= 20


@given(start=st.integers(1, 64))
def test_none_where_not_even_the_most_hold(start: int) -> None:
    search = fewest(lambda n: Case(engines=n), lambda n: ARMS[:1], 5.0, 1, (2, 64, start))
    assert driven(search, lambda job: False)[0] is None


class _Fake:
    """A runner that knows what holds."""

    budget_s, spent_s = 1.0, 0.0

    def __init__(self) -> None:
        self.rounds: list[int] = []

    def hold(self, jobs: Sequence[Job]) -> list[bool]:
        self.rounds.append(len(jobs))
        return [job.rate_rps <= (9 if job.arm == ARMS[0] else 20) for job in jobs]


def test_searches_in_step_get_their_own_answers() -> None:
    runner = _Fake()
    said: list[str] = []
    low, high = together(runner, [climb(Case(), [arm], 1, 8.0) for arm in ARMS[:2]], said.append)  # type: ignore[arg-type]
    assert isinstance(low, Climb)
    assert low.held_rps == pytest.approx(9, rel=PRECISION)
    assert high.held_rps == pytest.approx(20, rel=PRECISION)
    assert runner.rounds[0] == 2
    assert len(said) == len(runner.rounds)


@given(share=st.floats(0, 1), count=st.integers(2, 16))
def test_every_split_of_a_small_fleet_is_tried_the_nearest_first(share: float, count: int) -> None:
    from narwhal.simulate import plain_engines
    from tests.advise.fleets import CURVES

    arms = splits(plain_engines(count, CURVES), share)
    assert {arm.policy for arm in arms} == {f"static:{p}p{count - p}d" for p in range(1, count)}
    nearest = int(arms[0].policy.removeprefix("static:").partition("p")[0])
    assert all(abs(nearest - share * count) <= abs(p - share * count) for p in range(1, count))
