"""Deadlines pass once, not early and not later than a slot, whatever the order in which they were set."""

import math
from collections.abc import Iterable
from typing import Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from narwhal.router.deadlines import LOOK_S, Deadlines, Watch

SLOT_S = 0.5
Kind = Literal["queue", "prefill", "first_token"]
kinds = st.sampled_from(["queue", "prefill", "first_token"])
numbers = st.integers(1, 5)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), numbers, kinds, st.floats(0.0, 30.0)),
        st.tuples(st.just("arm"), numbers, kinds, st.floats(-1.0, 20.0)),
        st.tuples(st.just("disarm"), numbers, kinds, st.just(0.0)),
        st.tuples(st.just("end"), numbers, kinds, st.just(0.0)),
        st.tuples(st.just("wait"), numbers, kinds, st.floats(0.0, 5.0)),
    ),
    max_size=80,
)


class World:
    """Deadlines, and beside them what they should know, by number: kind -> until."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.deadlines = Deadlines(self.now, SLOT_S)
        self.watches: dict[int, Watch] = {}
        self.waiting: dict[int, dict[str, float]] = {}

    def arrive(self, number: int, seconds: float) -> None:
        self.end(number)
        self.watches[number] = self.deadlines.watch(number, self.now, self.now + seconds)
        self.waiting[number] = {"request": self.now + seconds}

    def arm(self, number: int, kind: Kind, seconds: float) -> None:
        if number in self.watches:
            self.deadlines.arm(self.watches[number], kind, self.now + seconds)
            limit = {what: until for what, until in self.waiting[number].items() if what == "request"}
            # one that is over already counts from here
            self.waiting[number] = {**limit, kind: self.now + max(seconds, 0.0)}

    def disarm(self, number: int) -> None:
        if number in self.watches:
            self.watches[number].disarm()
            for kind in self.waiting[number].keys() - {"request"}:
                del self.waiting[number][kind]

    def end(self, number: int) -> None:
        if number in self.watches:
            self.watches.pop(number).over = True
            del self.waiting[number]

    def wait(self, seconds: float) -> None:
        self.now += seconds
        for found, kind in self.deadlines.due(self.now):
            assert self.waiting[found].pop(kind) <= self.now
        assert all(until > self.now - 2 * SLOT_S for until in self.untils())

    def untils(self) -> Iterable[float]:
        return (until for kinds in self.waiting.values() for until in kinds.values())


@settings(deadline=None)
@given(steps)
def test_each_is_found_once_and_within_a_slot(steps: list[tuple[str, int, Kind, float]]) -> None:
    world = World()
    for what, number, kind, seconds in steps:
        if what == "arrive":
            world.arrive(number, seconds)
        elif what == "arm":
            world.arm(number, kind, seconds)
        elif what == "disarm":
            world.disarm(number)
        elif what == "end":
            world.end(number)
        else:
            world.wait(seconds)
    world.wait(100.0)
    assert not list(world.untils())


def test_an_infinite_one_is_none() -> None:
    deadlines = Deadlines(0.0, SLOT_S)
    deadlines.arm(deadlines.watch(1, 0.0, math.inf), "first_token", math.inf)
    assert deadlines.due(1e6) == []


def test_a_shorter_one_is_not_held_up_by_a_longer_one_before_it() -> None:
    deadlines = Deadlines(0.0, SLOT_S)
    for number, until in ((1, 60.0), (2, 5.0)):
        deadlines.arm(deadlines.watch(number, 0.0, math.inf), "queue", until)
    assert deadlines.due(6.0) == [(2, "queue")]


def test_what_is_over_is_kept_for_one_look_at_the_most() -> None:
    deadlines = Deadlines(0.0, SLOT_S)
    for number in range(2000):
        watch = deadlines.watch(number, 0.0, 3600.0 + number)
        deadlines.arm(watch, "prefill", 30.0)
        deadlines.arm(watch, "first_token", 60.0)
        watch.over = True
    assert len(deadlines) == 2000
    assert deadlines.due(LOOK_S + 2 * SLOT_S) == []
    assert len(deadlines) == 0


class _Counted(dict[int, list[Watch]]):
    """Counts the slots that are looked up."""

    looked = 0

    def pop(self, place: int, default: object = None) -> object:  # type: ignore[override]
        self.looked += 1
        return super().pop(place, default)


def test_a_sweep_looks_at_the_slots_that_are_over_and_no_others() -> None:
    deadlines = Deadlines(0.0, SLOT_S)
    for number in range(2000):
        deadlines.watch(number, 0.0, 3600.0 + number)
    deadlines._slots = counted = _Counted(deadlines._slots)
    assert deadlines.due(7 * SLOT_S) == []
    assert counted.looked == 6
