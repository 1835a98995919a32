"""Deadlines pass once, not early and not later than a slot, whatever the order in which they were set."""

import math
from typing import Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from narwhal.router.deadlines import Deadlines, Slot

SLOT_S = 0.5
Kind = Literal["queue", "prefill", "first_token"]
kinds = st.sampled_from(["queue", "prefill", "first_token"])
numbers = st.integers(1, 5)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("arm"), numbers, kinds, st.floats(-1.0, 20.0)),
        st.tuples(st.just("disarm"), numbers, kinds, st.just(0.0)),
        st.tuples(st.just("wait"), numbers, kinds, st.floats(0.0, 5.0)),
    ),
    max_size=60,
)


@settings(deadline=None)
@given(steps)
def test_each_is_found_once_and_within_a_slot(steps: list[tuple[str, int, Kind, float]]) -> None:
    now = 1000.0
    deadlines, waiting, slots = Deadlines(now, SLOT_S), {}, {}
    for what, number, kind, seconds in steps:
        if what == "wait":
            now += seconds
            for found, found_kind in deadlines.due(now):
                until, expected_kind = waiting.pop(found)
                assert found_kind == expected_kind
                assert until <= now
            assert all(until > now - 2 * SLOT_S for until, _ in waiting.values())
            continue
        if number in waiting:
            slots[number].pop(number)
            del waiting[number]
        if what == "arm":
            slots[number] = deadlines.arm(number, kind, now + seconds)
            waiting[number] = (now + max(seconds, 0.0), kind)  # one that is over already counts from here
    assert len(deadlines) == len(waiting)


def test_an_infinite_one_is_none() -> None:
    deadlines = Deadlines(0.0, SLOT_S)
    assert deadlines.arm(1, "first_token", math.inf) is None
    assert deadlines.due(1e6) == []


def test_a_shorter_one_is_not_held_up_by_a_longer_one_before_it() -> None:
    deadlines = Deadlines(0.0, SLOT_S)
    deadlines.arm(1, "queue", 60.0)
    deadlines.arm(2, "queue", 5.0)
    assert deadlines.due(6.0) == [(2, "queue")]


class _Counted(dict[int, Slot]):
    """Counts the slots that are looked up."""

    looked = 0

    def get(self, place: int, default: object = None) -> object:  # type: ignore[override]
        self.looked += 1
        return super().get(place, default)

    def pop(self, place: int, default: object = None) -> object:  # type: ignore[override]
        self.looked += 1
        return super().pop(place, default)


def test_a_sweep_looks_at_the_slots_that_are_over_and_no_others() -> None:
    deadlines = Deadlines(0.0, SLOT_S)
    for number in range(2000):
        deadlines.arm(number, "request", 3600.0 + number)
    deadlines._slots = counted = _Counted(deadlines._slots)
    assert deadlines.due(10 * SLOT_S) == []
    assert counted.looked <= 10
