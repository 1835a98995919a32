"""Each rule of `reactive`: the move that would not happen, or would happen too early, without it."""

from typing import Any

import pytest

from narwhal.control.departure import Departure
from narwhal.control.evidence import Evidence, Settled
from narwhal.control.load import look
from narwhal.control.reactive import Reactive
from tests.control.fleets import HandFleet, guard

CALM = {"demand_rise_tolerance": 100.0}
"""No shift is ever seen, so that departures stay out of a test of another rule."""


def reactive(roles: str, thresholds: dict[str, Any] | None = None, **parameters: Any) -> HandFleet:
    return HandFleet(roles, "reactive", reactive=parameters, thresholds=thresholds or {})


def policy(fleet: HandFleet) -> Reactive:
    assert isinstance(fleet.roles.policy, Reactive)
    return fleet.roles.policy


def first_move_t(fleet: HandFleet) -> float:
    assert fleet.moved, fleet.last
    return fleet.moved[0][0]


# Adjacent splits and their margin


def test_one_engine_at_a_time_however_far_the_best_split_is() -> None:
    fleet = reactive("pddddddd", **CALM)
    fleet.run(40, prefill=4.0)
    times = [t for t, _, _ in fleet.moved]
    assert fleet.split.count("p") >= 4
    assert len(times) == len(set(times))


@pytest.mark.parametrize(("margin", "moves"), [(0.5, False), (0.2, True)])
def test_the_margin_ignores_what_hardly_helps(margin: float, moves: bool) -> None:
    fleet = reactive("ppdd", movement_margin=margin, **CALM)
    fleet.run(20, prefill=1.8)  # 0.9 now, 0.6 with one more
    assert bool(fleet.moved) is moves


@pytest.mark.parametrize(("act_at", "moves"), [(0.8, False), (0.5, True)])
def test_a_fleet_with_room_in_both_roles_is_not_balanced(act_at: float, moves: bool) -> None:
    fleet = reactive("ppdd", act_at=act_at, **CALM)
    fleet.run(20, prefill=1.4)  # 0.7 now, 0.47 with one more
    assert bool(fleet.moved) is moves


def test_a_shift_within_the_room_of_both_roles_moves_nothing_either() -> None:
    fleet = settled_fleet("ppdddd", 20)
    fleet.run(8, prefill=1.4, decode=0.001)
    assert not fleet.moved


def test_an_idle_fleet_is_not_balanced() -> None:
    fleet = reactive("pddddddd")
    fleet.run(60, prefill=0.05, decode=0.001)
    assert not fleet.moved


# Evidence


def test_prefill_gains_nothing_before_the_evidence_window_has_closed() -> None:
    for span_s in (4.0, 8.0):
        fleet = reactive("ppdd", evidence_span_s=span_s, **CALM)
        fleet.run(20, prefill=2.4)
        assert span_s <= first_move_t(fleet) <= span_s + 2


def test_sparse_traffic_closes_the_window_later() -> None:
    for arrivals, closes_s in ((1, 4.0), (1000, 10.0)):
        fleet = reactive("ppdd", evidence_min_arrivals=arrivals, **CALM)
        fleet.run(20, prefill=2.4)
        assert closes_s <= first_move_t(fleet) <= closes_s + 2


def test_a_first_token_timeout_opens_the_window_again() -> None:
    fleet = reactive("ppdd", **CALM)
    fleet.run(3, prefill=0.4)
    fleet.demand.first_token_timeout(fleet.t)
    fleet.run(20, prefill=4.0)
    assert first_move_t(fleet) >= 8.0


def test_a_move_to_decode_opens_the_window_again() -> None:
    fleet = reactive("pppdd", **CALM)
    fleet.run(10, prefill=0.4)
    fleet.do(fleet.roles.request_move(10.0, "e0", "decode"))
    fleet.run(20, prefill=4.0)
    back = [t for t, _, role in fleet.moved if role == "prefill"]
    assert back[0] >= 14.0


def test_a_repair_of_the_decode_floor_opens_the_window_again() -> None:
    fleet = reactive("ppppd", **CALM)
    fleet.run(10, prefill=0.4)
    fleet["e4"].ejected = True
    fleet.run(1, prefill=0.4)
    assert fleet.moved[0][2] == "decode"
    fleet["e4"].ejected = False
    fleet.run(20, prefill=9.0)
    back = [t for t, _, role in fleet.moved if role == "prefill"]
    assert back[0] >= 15.0


def test_evidence_closes_by_arrivals_since_it_opened() -> None:
    fleet = reactive("pd")
    evidence = Evidence(fleet.settings.controller.reactive, fleet.demand)
    evidence.observe(0.0)
    for number in range(7):
        fleet.demand.arrived(number / 2, 0.1)
    assert not evidence.closed(5.0).passed
    fleet.demand.arrived(5.0, 0.1)
    assert evidence.closed(5.0).passed
    evidence.open(5.0)
    assert not evidence.closed(9.0).passed
    assert evidence.closed(15.0).passed


# Stable demand, the larger horizon, shrinking


def test_prefill_gains_nothing_while_decode_demand_rises_and_the_split_is_not_steady() -> None:
    fleet = reactive("ppdd")
    fleet.offer(20, prefill=2.4, decode=0.001)
    fleet.offer(4, prefill=2.4, decode=0.002)
    asked = policy(fleet).stable_decode(fleet.t)
    assert not asked.passed
    assert asked.value > asked.limit
    fleet.offer(40, prefill=2.4, decode=0.002)
    assert policy(fleet).stable_decode(fleet.t).passed


def test_a_steady_split_needs_no_stable_decode_demand() -> None:
    moved = {}
    for quiet_s in (0.0, 100.0):  # since the last shift
        fleet = reactive("ppdd", evidence_span_s=4.0, movement_margin=0.1)
        policy(fleet).departure.demand_differs = lambda t: False  # type: ignore[method-assign]
        policy(fleet).evidence.observe(0.0)
        fleet.offer(20, prefill=2.4, decode=0.001)
        fleet.offer(4, prefill=2.4, decode=0.004)
        policy(fleet)._shift_t = fleet.t - quiet_s
        fleet.run(2, prefill=2.4, decode=0.004)
        moved[quiet_s] = bool(fleet.moved)
    assert moved == {0.0: False, 100.0: True}


def test_prefill_gains_are_scored_with_the_larger_decode_demand() -> None:
    fleet = reactive("ppddd")
    fleet.offer(26, prefill=1.0, decode=0.10)
    fleet.offer(4, prefill=1.0, decode=0.02)  # decode demand fell; the long horizon still remembers it
    larger = policy(fleet)._larger_decode
    load = look(fleet.pool, fleet.settings, fleet.demand, fleet.t)
    assert larger(load).decode > 2 * load.offered.decode
    assert larger(load).prefill == load.offered.prefill


@pytest.mark.parametrize(("shrink", "early"), [(0.5, True), (0.1, False)])
def test_prefill_may_shrink_while_the_window_is_open_if_it_stays_below_shrink(shrink: float, early: bool) -> None:
    fleet = reactive("pppd", {"shrink": shrink}, evidence_span_s=8.0, **CALM)
    fleet.decode(90)
    fleet.offer(5, prefill=0.4)
    fleet.run(20, prefill=0.4)  # 0.2 with one engine less
    assert (first_move_t(fleet) < 13.0) is early


# Confirmations


def test_a_move_needs_equal_proposals_in_a_row() -> None:
    for confirmations, moves_t in ((1, 4.0), (2, 5.0), (3, 6.0)):
        fleet = reactive("ppdd", confirmations=confirmations, **CALM)
        fleet.run(20, prefill=1.8)
        assert first_move_t(fleet) == moves_t + 1  # the window opens at the first look, at 1 s


@pytest.mark.parametrize(("expand", "moves_t"), [(1.0, 5.0), (9.0, 7.0)])
def test_one_proposal_is_enough_where_the_role_that_gains_is_over_expand(expand: float, moves_t: float) -> None:
    fleet = reactive("ppdd", {"expand": expand}, confirmations=3, **CALM)
    fleet.run(20, prefill=2.4)
    assert first_move_t(fleet) == moves_t


def test_decode_over_expand_needs_one_proposal_too() -> None:
    fleet = reactive("pppd", confirmations=3, **CALM)
    fleet.decode(90)
    fleet.run(1, prefill=0.4)
    assert first_move_t(fleet) == 1.0


# Urgency


def test_urgency_skips_the_step_and_the_confirmations_and_nothing_else() -> None:
    fleet = reactive("ppdd", {"expand": 9.0}, confirmations=3, **CALM)
    fleet.run(4, prefill=2.4)
    fleet.do(fleet.roles.urgent(4.4))
    assert not fleet.moved  # the evidence window is open
    assert not guard(fleet.last, "evidence_span_s").passed
    fleet.do(fleet.roles.urgent(5.4))
    assert fleet.moved
    assert fleet.last.trigger == "urgency"


def test_urgent_evaluations_are_at_most_four_a_second() -> None:
    fleet = reactive("ppdd")
    fleet.run(1, prefill=0.1)
    numbers = []
    for step in range(100):
        fleet.roles.urgent(1.0 + step / 100)
        numbers.append(fleet.last.id)
    assert len(set(numbers)) <= 5


# Departures


def settled_fleet(roles: str = "ppdddd", seconds: int = 35, **parameters: Any) -> HandFleet:
    """A fleet that has been settled for long, under light demand."""
    fleet = reactive(roles, **parameters)
    fleet.run(seconds, prefill=0.8, decode=0.001)
    assert not fleet.moved
    return fleet


def test_a_shift_after_a_settled_run_moves_an_engine_without_fresh_evidence() -> None:
    fleet = settled_fleet()
    fleet.demand.first_token_timeout(fleet.t)  # the evidence window opens, which holds everything else
    fleet.run(3, prefill=3.0, decode=0.001)
    assert 36.0 <= first_move_t(fleet) <= 38.0
    assert "demand shifted" in fleet.decided[-1].reason or len(fleet.moved) == 1


def test_a_difference_that_chance_explains_is_no_shift() -> None:
    fleet = settled_fleet()
    fleet.demand.first_token_timeout(fleet.t)
    fleet.run(3, prefill=3.0, decode=0.001, per_s=1)  # as much as above, but two arrivals are no evidence of it
    assert not fleet.moved


def test_without_a_settled_run_a_shift_waits_for_evidence() -> None:
    fleet = settled_fleet()
    fleet.demand.first_token_timeout(fleet.t)
    policy(fleet).settled.interrupt()
    fleet.run(3, prefill=3.0, decode=0.001)
    assert not fleet.moved


def test_a_departure_keeps_moving_after_a_while_and_until_the_shift_ends() -> None:
    fleet = settled_fleet("ppdddddd")
    fleet.demand.first_token_timeout(fleet.t)
    fleet.run(10, prefill=4.0, decode=0.001)
    times = [t for t, _, _ in fleet.moved]
    assert len(times) >= 2
    assert times[1] >= times[0] + 4.0  # not a reversal: its second move waits for evidence_span_s


def test_a_departure_that_reverses_recent_moves_goes_on_at_once() -> None:
    fleet = settled_fleet("ppdddddd", 20)
    policy(fleet).departure.moved(fleet.t - 5.0, "decode", own=True)
    fleet.demand.first_token_timeout(fleet.t)
    fleet.run(4, prefill=4.0, decode=0.001)
    times = [t for t, _, _ in fleet.moved]
    assert len(times) >= 2
    assert times[1] == times[0] + 1.0


def test_a_reversing_departure_needs_a_settled_run_that_is_one_confirmation_span_shorter() -> None:
    fleet = reactive("pd", evidence_span_s=4.0)
    departure = Departure(fleet.settings.controller.reactive, fleet.demand)
    settled = Settled()
    settled.observe(0.0, better=False)
    settled.observe(2.0, better=False)
    assert departure.follow(2.0, "prefill", settled) is None
    departure.moved(0.0, "decode", own=True)
    assert departure.follow(2.0, "prefill", settled) is not None


def test_a_departure_closes_when_the_shift_ends_or_after_the_window() -> None:
    fleet = reactive("pd")
    settled = Settled()
    for t in range(10):
        settled.observe(float(t), better=False)
    departure = Departure(fleet.settings.controller.reactive, fleet.demand)
    assert departure.follow(9.0, "prefill", settled) is not None
    assert departure.target == "prefill"
    departure.follow(10.0, None, settled)
    assert departure.target is None
    departure.follow(10.0, "prefill", settled)
    departure.follow(39.9, "prefill", Settled())
    assert departure.target == "prefill"
    departure.follow(40.0, "prefill", Settled())
    assert departure.target is None


def test_opposite_moves_wait_until_the_departure_closes() -> None:
    fleet = reactive("ppdd")
    departure = policy(fleet).departure
    departure.target = "prefill"
    assert not policy(fleet).no_opposite_departure(0.0, "decode").passed
    assert policy(fleet).no_opposite_departure(0.0, "prefill").passed
    departure.target = None
    assert policy(fleet).no_opposite_departure(0.0, "decode").passed


def test_a_settled_run_ends_with_a_better_split_or_a_move() -> None:
    settled = Settled()
    for t in range(6):
        settled.observe(float(t), better=False)
    assert settled.seconds(5.0, 2.0) == 5.0
    settled.observe(6.0, better=True)
    assert settled.seconds(7.0, 2.0) == 5.0  # it ended just now
    assert settled.seconds(8.0, 2.0) == 0.0
    settled.observe(9.0, better=False)
    assert settled.seconds(9.0, 2.0) == 0.0
    settled.observe(10.0, better=False)
    settled.interrupt()
    assert settled.seconds(10.0, 2.0) == 0.0
