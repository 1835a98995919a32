"""Deadlines pass in order, once, and are found without looking at the others."""

import math
from typing import Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from narwhal.router.deadlines import Deadlines

LASTS_S = {"queue": 60.0, "prefill": 30.0, "first_token": 5.0}
Kind = Literal["queue", "prefill", "first_token"]
kinds = st.sampled_from(["queue", "prefill", "first_token"])
steps = st.lists(st.tuples(st.sampled_from(["arm", "disarm", "due"]), st.integers(1, 5), kinds), max_size=60)


@settings(deadline=None)
@given(steps)
def test_each_is_found_once_and_only_when_it_has_passed(steps: list[tuple[str, int, Kind]]) -> None:
    deadlines, expected, now = Deadlines(), {}, 0.0
    for what, number, kind in steps:
        now += 4.0
        if what == "arm":
            expected[number, kind] = now + LASTS_S[kind]
            deadlines.arm(number, kind, now + LASTS_S[kind])
        elif what == "disarm":
            expected.pop((number, kind), None)
            deadlines.disarm(number, kind)
        else:
            passed = {key for key, until in expected.items() if until <= now}
            found = deadlines.due(now)
            assert len(found) == len(set(found))
            assert set(found) == passed
            for key in passed:
                del expected[key]
    assert len(deadlines) == len(expected)


def test_an_infinite_one_replaces_a_finite_one() -> None:
    deadlines = Deadlines()
    deadlines.arm(1, "first_token", 5.0)
    deadlines.arm(1, "first_token", math.inf)
    assert deadlines.due(1e9) == []
    assert len(deadlines) == 0


def test_the_one_that_is_armed_again_waits_its_whole_time() -> None:
    deadlines = Deadlines()
    deadlines.arm(1, "queue", 60.0)
    deadlines.arm(2, "queue", 61.0)
    deadlines.arm(1, "queue", 62.0)
    assert deadlines.due(61.5) == [(2, "queue")]
    assert deadlines.due(62.0) == [(1, "queue")]
