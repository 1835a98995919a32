"""Each rule of `projection`: the move that would not happen, or would happen too early, without it."""

from typing import Any

import pytest

from narwhal.control.donors import Donors
from narwhal.control.load import look
from narwhal.control.projection import Projection, overflows
from tests.control.fleets import HandFleet, guard, settings


def projection(roles: str, **parameters: Any) -> HandFleet:
    return HandFleet(roles, "projection", projection=parameters)


def test_a_role_over_its_target_gets_engines_at_once() -> None:
    fleet = projection("ppdddddd")
    fleet.offer(4, prefill=3.0)
    fleet.run(1, prefill=3.0)
    assert fleet.split.count("p") == 4  # k = 2 for eight engines, both in one decision
    assert {t for t, _, _ in fleet.moved} == {5.0}


def test_decode_over_its_target_gets_engines_too() -> None:
    fleet = projection("ppppppdd")
    fleet.decode(100)
    fleet.run(1, prefill=1.0)
    assert fleet.split.count("d") == 4


@pytest.mark.parametrize(("at", "moves"), [(0.7, 0), (0.5, 1)])
def test_expand_at_keeps_a_half_loaded_fleet_from_balancing_towards_prefill(at: float, moves: int) -> None:
    fleet = projection("pddd", expand_at=at)
    fleet.offer(4, prefill=0.6)
    fleet.run(2, prefill=0.6)
    assert bool(fleet.moved) is bool(moves)
    if not moves:
        assert not guard(fleet.last, "expand_at").passed
        assert fleet.last.outcome == "held"


@pytest.mark.parametrize(("at", "moves"), [(0.9, 0), (0.5, 1)])
def test_shrink_at_keeps_a_loaded_fleet_from_balancing_towards_decode(at: float, moves: int) -> None:
    fleet = projection("pppd", shrink_at=at)
    fleet.decode(57)  # 0.57 of 0.7: 0.81
    fleet.offer(4, prefill=0.3)
    fleet.run(2, prefill=0.3)
    assert bool(fleet.moved) is bool(moves)


@pytest.mark.parametrize(("gain", "moves"), [(0.15, 0), (0.0, 1)])
def test_gain_ignores_what_hardly_helps(gain: float, moves: int) -> None:
    fleet = projection("pppppppdd", gain=gain)
    fleet.decode(65)  # 0.93 of target; two more prefill engines leave one decode engine
    fleet.offer(4, prefill=7.7)  # 1.1 for each of seven, 0.96 for each of eight
    fleet.run(1, prefill=7.7)
    assert len(fleet.moved) == moves


@pytest.mark.parametrize(("calm", "moves"), [(0.3, 0), (0.1, 1)])
def test_gain_calm_asks_for_more_while_all_is_within_target(calm: float, moves: int) -> None:
    fleet = projection("ppdd", gain_calm=calm)
    fleet.offer(4, prefill=1.6)
    fleet.run(2, prefill=1.6)  # 0.8 now, 0.53 and a move's cost with one more
    assert len(fleet.moved) == moves


@pytest.mark.parametrize(("reversal_s", "t"), [(8.0, 9.0), (0.0, 4.0)])
def test_a_reversal_of_a_recent_move_needs_twice_the_gain(reversal_s: float, t: float) -> None:
    fleet = projection("ppdd", reversal_s=reversal_s)
    fleet.roles.policy.moved(1.0, "decode", 1, own=True)
    fleet.t = 1.0
    fleet.run(10, prefill=1.7)  # 0.85 to 0.59: a gain of .26 is enough, but not for a reversal
    assert fleet.moved[0][0] >= t
    assert fleet.moved[0][0] <= t + 2


def test_two_evaluations_must_agree_while_nothing_is_over_its_target() -> None:
    fleet = projection("ppdd")
    fleet.offer(4, prefill=1.7)
    fleet.run(1, prefill=1.7)
    assert fleet.last.outcome == "held"
    assert guard(fleet.last, "confirmations").value == 1
    fleet.run(1, prefill=1.7)
    assert fleet.last.outcome == "moved"


def test_a_proposal_that_comes_and_goes_is_not_confirmed() -> None:
    fleet = projection("ppdd", window_s=1.0, short_window_s=1.0)
    for _ in range(4):
        fleet.run(1, prefill=1.7)
        fleet.run(2, prefill=0.2)
    assert not fleet.moved


def test_few_arrivals_prove_nothing() -> None:
    fleet = projection("pddd")
    fleet.run(3, prefill=3.0, per_s=1)
    assert not fleet.moved
    assert not guard(fleet.last, "min_arrivals").passed
    fleet.run(6, prefill=3.0, per_s=1)
    assert fleet.moved


def test_few_arrivals_are_enough_once_a_prompt_has_waited_as_long_as_its_target() -> None:
    fleet = projection("pddd")
    fleet.queue(1, cost_s=30.0, arrived_t=0.0)
    fleet.run(2, prefill=1.0, per_s=1)
    assert fleet.moved


def test_moving_engines_has_a_price_so_the_nearer_of_two_equal_splits_wins() -> None:
    fleet = projection("ppdddddd", gain=0.0, gain_calm=0.0)
    fleet.decode(40)  # decode is at 0.57 of its target, whatever prefill gains
    fleet.offer(4, prefill=1.6)
    fleet.run(2, prefill=1.6)  # 0.8 now; one more engine makes 0.53, two 0.4: decode decides in both cases
    assert len(fleet.moved) == 1


def test_ties_go_to_the_current_split_then_to_fewer_prefill_engines() -> None:
    fleet = projection("ppdd", move_cost=0.0)
    policy = fleet.roles.policy
    assert isinstance(policy, Projection)
    options = policy.options(
        look(fleet.pool, fleet.settings, fleet.demand, 0.0), Donors(fleet.pool, fleet.settings, 0.0)
    )
    assert len({option.cost for option in options}) == 1  # idle: all are alike
    assert policy.best(options).target is None
    assert policy.best(options[1:]).scored.prefill == 1


def test_an_urgent_evaluation_moves_what_is_over_its_target_and_confirms_nothing() -> None:
    fleet = projection("ppdd")
    fleet.offer(4, prefill=1.7)
    fleet.run(1, prefill=1.7)
    fleet.do(fleet.roles.urgent(5.3))
    assert not fleet.moved  # within target: the second step decides
    fleet = projection("ppdddd")
    fleet.run(1, prefill=0.2)
    for number in range(20):
        fleet.queue(number, cost_s=2.0, arrived_t=1.0)
    fleet.do(fleet.roles.urgent(1.4))
    assert fleet.moved
    assert fleet.last.trigger == "urgency"


@pytest.mark.parametrize(
    ("price_s", "own_s", "streams", "overflow", "admission", "may"),
    [
        (2.1, 1.0, 50, True, "open", True),
        (1.9, 1.0, 50, True, "open", False),
        (2.1, 1.7, 50, True, "open", False),
        (2.1, 1.0, 51, True, "open", False),
        (2.1, 1.0, 50, False, "open", False),
        (2.1, 1.0, 50, True, "predictive", False),
    ],
)
def test_overflow(price_s: float, own_s: float, streams: int, overflow: bool, admission: str, may: bool) -> None:
    fleet = HandFleet("pd")
    fleet["e1"].streams = streams
    these = settings("projection", admission, projection={"overflow": overflow})
    assert overflows(these, price_s, 2.0, fleet["e1"], own_s) is may
