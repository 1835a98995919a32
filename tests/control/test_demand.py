"""Windows, change points and the two decode flows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narwhal.control.demand import Demand, History
from narwhal.control.state import Pool
from tests.control.fleets import HandFleet, settings


def demand() -> Demand:
    return Demand(settings(), Pool())


@given(st.lists(st.tuples(st.floats(0, 20), st.floats(0, 3)), max_size=60), st.floats(0.5, 30))
def test_a_history_tells_of_a_span_what_a_look_at_all_events_tells(
    steps: list[tuple[float, float]], span_s: float
) -> None:
    history, t, events = History(30.0), 0.0, []
    for gap_s, value in steps:
        t += gap_s
        events.append((t, value))
        history.add(t, value)
    inside = [value for at, value in events if at >= t - span_s]
    sums = history.since(t - span_s)
    assert sums.events == len(inside)
    assert sums.total == pytest.approx(sum(inside), abs=1e-9)
    assert sums.squares == pytest.approx(sum(value * value for value in inside), abs=1e-9)


def test_a_history_of_a_long_life_is_as_exact_as_a_new_one() -> None:
    history = History(10.0)
    for step in range(100_000):
        history.add(step / 100, 0.1)
    assert history.since(999.99 - 10.0).total == pytest.approx(100.1)
    assert history._totals[-1] < 1000


def test_a_rate_is_not_diluted_by_the_time_before_the_start() -> None:
    counted = demand()
    for t in range(1, 7):
        counted.arrived(float(t), 2.0)
    assert counted.prefill.rate(30.0, 6.0) == pytest.approx(12 / 5)


def test_prefill_load_is_the_long_rate_or_what_the_short_one_proves() -> None:
    counted = demand()
    for t in range(30):
        counted.arrived(float(t), 0.5)
    assert counted.prefill_load(29.0) == pytest.approx(15 / 29, rel=0.1)
    for _ in range(16):
        counted.arrived(30.0, 0.5)
    # short: 3 and 16 prompts within 3 s, less its error of √19·0.5/3
    assert counted.prefill_load(30.0) == pytest.approx((20 * 0.5 - 20**0.5 * 0.5) / 3, rel=0.1)


def test_a_change_beyond_chance_restarts_the_long_window_three_seconds_back() -> None:
    counted = demand()
    for step in range(200):
        counted.arrived(step / 10, 0.05)
    assert not counted.settle(20.0)
    for step in range(20):
        counted.arrived(20.0 + step / 10, 0.5)
    assert counted.settle(22.0)
    assert counted.prefill.long_start_t == pytest.approx(19.0)
    assert counted.prefill.rate(counted.prefill.long_span_s(22.0), 22.0) == pytest.approx(10.5 / 3, rel=0.05)


def test_a_change_within_chance_is_none() -> None:
    counted = demand()
    for step in range(30):
        counted.arrived(float(step), 0.5)
    counted.arrived(29.5, 0.5)
    counted.arrived(29.8, 0.5)
    assert not counted.settle(30.0)


def test_a_change_of_decode_alone_restarts_both_windows() -> None:
    counted = demand()
    for step in range(200):
        counted.arrived(step / 10, 0.05)
        counted.entered_decode(step / 10, 0.001)
    for step in range(20):
        counted.arrived(20.0 + step / 10, 0.05)
        counted.entered_decode(20.0 + step / 10, 0.01)
    assert counted.settle(22.0)
    assert counted.prefill.long_start_t == counted.decode.long_start_t == pytest.approx(19.0)


def test_entering_is_what_finished_prefill_in_the_last_five_seconds() -> None:
    counted = demand()
    for t in range(10):
        counted.entered_decode(float(t), 0.1)
    assert counted.entering(9.5) == pytest.approx(0.5)
    assert counted.entering(99.0) == 0.0


def test_survival_is_one_when_nothing_was_there() -> None:
    assert demand().survival(1.0) == 1.0


def test_survival_is_the_share_of_old_occupancy_that_is_still_there() -> None:
    fleet = HandFleet("pd")
    fleet["e1"].streams = 60  # 0.6, of which 0.2 entered just now
    fleet.demand.entered_decode(8.0, 0.2)
    fleet.demand.left_decode(9.0, 0.1, entered_t=0.0)
    assert fleet.demand.survival(9.0) == pytest.approx(0.4 / 0.5)


def test_streams_that_are_over_already_do_not_count_as_entering() -> None:
    counted = demand()
    counted.entered_decode(1.0, 0.3)
    counted.entered_decode(1.5, 0.2)
    counted.left_decode(2.0, 0.4, entered_t=1.0, entered=0.3)
    assert counted.entering(2.0) == pytest.approx(0.2)


def test_brief_streams_are_no_decode_demand() -> None:
    counted = demand()
    for step in range(100):
        counted.entered_decode(step / 10, 0.3)
        counted.left_decode(step / 10 + 0.05, 0.4, entered_t=step / 10, entered=0.3)
    assert counted.decode.rate(4.0, 9.95) == pytest.approx(0.0)
    assert counted.mean_occupancy() == pytest.approx(0.3)


def test_streams_that_came_and_went_within_the_span_are_neither_old_nor_ended() -> None:
    fleet = HandFleet("pd")
    fleet["e1"].streams = 40
    fleet.demand.entered_decode(8.0, 0.2)
    fleet.demand.left_decode(9.0, 0.2, entered_t=8.0)
    assert fleet.demand.survival(9.0) == 1.0
    # at 13.5 it is a stream that was there five seconds ago and is not any more
    assert fleet.demand.survival(13.5) == pytest.approx(0.4 / 0.6)
    assert fleet.demand.survival(14.5) == 1.0


def test_mean_occupancy_is_that_of_recent_streams() -> None:
    counted = demand()
    assert counted.mean_occupancy() == 0.0
    counted.entered_decode(1.0, 0.1)
    counted.entered_decode(1.5, 0.3)
    assert counted.mean_occupancy() == pytest.approx(0.2)


def test_time_that_runs_backwards_or_leaps_does_no_harm() -> None:
    counted = demand()
    counted.arrived(100.0, 1.0)
    counted.arrived(50.0, 1.0)
    assert counted.prefill.count(30.0, 100.0) == 2
    counted.arrived(1e9, 1.0)
    assert counted.prefill.count(30.0, 1e9) == 1
    assert counted.entering(1e9 - 5) == 0.0


def test_memory_is_bounded_by_the_spans() -> None:
    counted = demand()
    for step in range(20_000):
        counted.arrived(step / 10, 0.1)
        counted.entered_decode(step / 10, 0.1)
        counted.left_decode(step / 10, 0.1, step / 10 - 1.0)
    assert len(counted.prefill._history) <= 301
    assert len(counted._brief_by_t) <= 51
