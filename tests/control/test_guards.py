"""Each guard and each floor rule: a move that it holds, recorded with its numbers."""

from typing import Any

import pytest

from narwhal.control.commands import Decided, MoveRole
from narwhal.control.events import EngineDown, EngineJoined, EngineUp, Tick
from tests.control.driving import CURVES, Driver, only
from tests.control.fleets import HandFleet, guard


def urgent_fleet(roles: str = "pddd", **thresholds: Any) -> HandFleet:
    """A fleet whose prefill is far over its target as soon as time goes on."""
    return HandFleet(roles, "projection", thresholds=thresholds)


def test_a_pinned_engine_never_moves() -> None:
    fleet = urgent_fleet()
    for name in ("e1", "e2", "e3"):
        fleet[name].pin = "decode"
    fleet.run(5, prefill=9.0)
    assert fleet.split == "pddd"
    fleet.do(fleet.roles.request_move(5.0, "e1", "prefill"))
    assert not guard(fleet.last, "pin").passed
    assert fleet.last.outcome == "held"
    assert fleet.split == "pddd"


@pytest.mark.parametrize("state", ["draining", "suspected", "ejected"])
def test_an_engine_with_a_lifecycle_hold_does_not_move(state: str) -> None:
    fleet = urgent_fleet("pddd")
    setattr(fleet["e1"], state, True)
    fleet.run(3, prefill=9.0)
    assert all(engine != "e1" for _, engine, _ in fleet.moved)
    fleet.do(fleet.roles.request_move(3.0, "e1", "prefill"))
    assert not guard(fleet.last, state).passed
    assert fleet["e1"].role == "decode"


def test_an_engine_between_two_roles_is_not_moved_again() -> None:
    fleet = urgent_fleet("pddd")
    fleet["e1"].moving = "decode"
    fleet.do(fleet.roles.request_move(0.0, "e1", "prefill"))
    assert not guard(fleet.last, "moving").passed


@pytest.mark.parametrize(("role", "limit"), [("prefill", 1), ("decode", 2)])
def test_floors_hold(role: str, limit: int) -> None:
    fleet = HandFleet("pdd", min_prefill=1, min_decode=2)
    engine, target = ("e0", "decode") if role == "prefill" else ("e1", "prefill")
    fleet.do(fleet.roles.request_move(0.0, engine, target))
    asked = guard(fleet.last, f"min_{role}")
    assert (asked.passed, asked.value, asked.limit) == (False, limit - 1, limit)
    assert fleet.split == "pdd"


@pytest.mark.parametrize("state", ["suspected", "questions", "draining", "ejected"])
@pytest.mark.parametrize("roles", ["ppd", "ddp"])
def test_no_move_takes_the_last_engine_of_a_role_that_may_have_new_work(roles: str, state: str) -> None:
    fleet = HandFleet(roles)
    role = fleet["e0"].role
    setattr(fleet["e1"], state, 1)
    fleet.pool.refresh()
    fleet.do(fleet.roles.request_move(0.0, "e0", "decode" if role == "prefill" else "prefill"))
    asked = guard(fleet.last, f"min_{role}")
    assert (asked.passed, asked.value, asked.limit) == (False, 0, 1)
    assert fleet.split == roles


@pytest.mark.parametrize("policy", ["reactive", "projection"])
def test_no_policy_moves_it_either(policy: str) -> None:
    fleet = HandFleet("ppdd", policy)
    fleet["e1"].suspected = True
    fleet.pool.refresh()
    fleet.decode(99)
    fleet.run(30, prefill=0.01, decode=5.0)
    assert fleet.split == "ppdd"
    assert not fleet.moved
    fleet["e1"].suspected = False  # with both, one may go
    fleet.pool.refresh()
    fleet.decode(99)
    fleet.run(30, prefill=0.01, decode=5.0)
    assert fleet.split.count("p") == 1


def test_suspicion_alone_repairs_no_floor_and_the_other_role_cannot_spare_its_last_able_engine() -> None:
    fleet = HandFleet("pdd")
    fleet["e0"].suspected = True
    fleet.idle(3)
    assert not fleet.moved
    fleet["e0"].ejected = True  # now prefill is empty, but one of two decode engines is suspected
    fleet["e1"].suspected = True
    fleet.idle(3)
    assert not fleet.moved
    fleet["e1"].suspected = False
    fleet.idle(1)
    assert len(fleet.moved) == 1


def test_no_floor_is_repaired_before_every_engine_was_looked_at_once() -> None:
    driver = Driver("pp", controller={"policy": "reactive"})
    for name in ("e2", "e3"):
        driver.feed(EngineJoined(0.0, name, "decode", CURVES, True))
    assert not [c for c in driver.feed(Tick(0.1)) if isinstance(c, MoveRole)]
    driver.feed(EngineUp(0.2, "e2", "life-1"))
    driver.feed(EngineUp(0.3, "e3", "life-1"))
    assert not [c for t in range(1, 6) for c in driver.feed(Tick(float(t))) if isinstance(c, MoveRole)]


@pytest.mark.parametrize("looked", [True, False])
def test_it_is_repaired_once_they_did_not_answer_or_no_look_ended_in_time(looked: bool) -> None:
    driver = Driver("pp", controller={"policy": "reactive"})
    driver.feed(EngineJoined(0.0, "e2", "decode", CURVES, True))
    assert not [c for c in driver.feed(Tick(0.1)) if isinstance(c, MoveRole)]
    if looked:
        driver.feed(EngineDown(1.5, "e2", "timeout"))
    assert only(driver.feed(Tick(1.6 if looked else 2.6)), MoveRole).role == "decode"


def test_a_partner_that_is_suspected_does_not_let_an_engine_leave_its_cohort() -> None:
    fleet = HandFleet("ppddd", "projection")
    for name in ("e0", "e2", "e3"):
        fleet[name].fingerprint = "new"
    fleet["e3"].suspected = True
    fleet.pool.refresh()
    fleet.do(fleet.roles.request_move(0.0, "e2", "prefill"))
    assert (fleet.last.outcome, fleet.split) == ("held", "ppddd")


def test_cooldown_parts_two_decisions_from_prefill_to_decode_and_no_others() -> None:
    fleet = HandFleet("ppppd", thresholds={"cooldown_s": 10.0})
    fleet.do(fleet.roles.request_move(1.0, "e0", "decode"))
    fleet.do(fleet.roles.request_move(5.0, "e1", "decode"))
    asked = guard(fleet.last, "cooldown_s")
    assert (asked.passed, asked.value, asked.limit) == (False, 4.0, 10.0)
    fleet.do(fleet.roles.request_move(5.0, "e0", "prefill"))
    assert fleet.last.outcome == "moved"
    fleet.do(fleet.roles.request_move(11.0, "e1", "decode"))
    assert fleet.last.outcome == "moved"


def test_an_engine_dwells_in_a_role_it_was_moved_to() -> None:
    fleet = HandFleet("ppd", thresholds={"dwell_s": 10.0})
    fleet.do(fleet.roles.request_move(1.0, "e0", "decode"))
    fleet.t = 4.0
    fleet.do(fleet.roles.request_move(4.0, "e0", "prefill"))
    asked = guard(fleet.last, "dwell_s")
    assert (asked.passed, asked.value, asked.limit, asked.engine) == (False, 3.0, 10.0, "e0")
    fleet.do(fleet.roles.request_move(11.0, "e0", "prefill"))
    assert fleet.last.outcome == "moved"


def test_the_resident_guard_caps_the_streams_of_a_decode_donor_and_zero_is_no_cap() -> None:
    for cap, moves in ((4, False), (5, True), (0, True)):
        fleet = HandFleet("pdd", thresholds={"flip_resident_guard": cap})
        fleet.decode(5)
        fleet.do(fleet.roles.request_move(0.0, "e1", "prefill"))
        assert bool(fleet.moved) is moves
        asked = guard(fleet.last, "flip_resident_guard")
        assert (asked.value, asked.limit) == (5, cap)


def test_hold_freezes_moves_of_every_kind_until_it_ends() -> None:
    fleet = urgent_fleet()
    fleet.do(fleet.roles.set_hold(0.0, True, "upgrade of the switch"))
    assert "upgrade of the switch" in fleet.last.reason
    fleet.run(3, prefill=9.0)
    assert fleet.last.outcome == "held"
    assert not guard(fleet.last, "hold").passed
    fleet.do(fleet.roles.request_move(3.0, "e1", "prefill"))
    fleet.do(fleet.roles.request_swap(3.0, "e0", "e1"))
    assert not fleet.moved
    fleet.do(fleet.roles.set_hold(3.0, False, ""))
    fleet.run(1, prefill=9.0)
    assert fleet.moved


def test_advisory_records_and_does_not_act() -> None:
    fleet = HandFleet("pddd", "projection", advisory=True)
    fleet.run(3, prefill=9.0)
    assert fleet.last.outcome == "advised"
    assert [move.target for move in fleet.last.moves] == ["prefill", "prefill"]
    assert not fleet.moved


def test_a_batch_shrinks_to_the_donors_that_pass() -> None:
    fleet = urgent_fleet("pddd", flip_resident_guard=4)
    fleet.decode(5, "e1", "e2")
    fleet.run(1, prefill=9.0)
    assert [move.engine for move in fleet.last.moves] == ["e3"]
    assert fleet.last.outcome == "moved"
    failed = [each for each in fleet.last.guards if not each.passed]
    assert [(each.name, each.value, each.limit) for each in failed] == [("flip_resident_guard", 5, 4)]


def test_a_decision_without_a_donor_that_passes_is_held_with_the_guard_in_words() -> None:
    fleet = urgent_fleet("pddd", flip_resident_guard=4)
    fleet.decode(5)
    fleet.run(1, prefill=9.0)
    assert fleet.last.outcome == "held"
    assert "held by flip_resident_guard of e1: 5 against 4" in fleet.last.reason


# Floor repair


def test_floor_repair_moves_one_engine_per_pass_before_anything_else() -> None:
    fleet = HandFleet("dddddd", min_prefill=3, thresholds={"dwell_s": 100.0, "cooldown_s": 100.0})
    for engine in fleet.pool.engines.values():
        engine.role_since_t = 0.0
    for split in ("pddddd", "ppdddd", "pppddd", "pppddd"):
        fleet.idle(1)
        assert fleet.split == split
    assert [d.trigger for d in fleet.decided if d.outcome == "moved"] == ["floor"] * 3


def test_floor_repair_waits_for_the_next_monitor_pass() -> None:
    fleet = HandFleet("dddd", min_prefill=2, monitor_interval_s=5.0)
    fleet.idle(5)
    assert fleet.split == "pddd"
    fleet.idle(1)
    assert fleet.split == "ppdd"


def test_floor_repair_takes_the_emptiest_and_never_a_pin_or_a_lifecycle_hold() -> None:
    fleet = HandFleet("ddddd")
    fleet.decode(3)
    fleet["e1"].streams = 0
    fleet["e1"].pin = "decode"
    fleet["e2"].streams = 1
    fleet["e2"].suspected = True
    fleet["e3"].streams = 2
    fleet.idle(1)
    assert fleet.moved == [(1.0, "e3", "prefill")]


def test_floor_repair_respects_the_operators_hold() -> None:
    fleet = HandFleet("ddd")
    fleet.do(fleet.roles.set_hold(0.0, True, "maintenance"))
    fleet.idle(3)
    assert not fleet.moved
    assert (fleet.last.trigger, fleet.last.outcome) == ("floor", "held")


def test_floor_repair_does_not_break_the_other_floor_unless_a_role_is_empty() -> None:
    fleet = HandFleet("pdd", min_prefill=2, min_decode=2)
    fleet.idle(3)
    assert fleet.split == "pdd"
    assert fleet.last.outcome == "stay"
    fleet = HandFleet("dd", min_prefill=2, min_decode=2)
    fleet.idle(3)
    assert fleet.split == "pd"


def test_an_empty_role_is_repaired_before_a_short_one() -> None:
    fleet = HandFleet("pp", min_prefill=3, min_decode=1)
    fleet.idle(3)
    assert fleet.split == "dp"


def test_a_lost_engine_is_replaced_and_its_return_changes_nothing_by_itself() -> None:
    fleet = HandFleet("pddd")
    fleet["e0"].ejected = True
    fleet.idle(1)
    assert fleet.moved == [(1.0, "e1", "prefill")]
    fleet["e0"].ejected = False
    fleet.idle(5)
    assert fleet.split == "ppdd"


def test_a_single_engine_is_left_alone() -> None:
    fleet = HandFleet("p")
    fleet.idle(5)
    assert not fleet.decided


# What the operator asks for


def test_a_swap_changes_two_engines_in_one_decision_where_no_single_move_could() -> None:
    fleet = HandFleet("pd")
    commands = fleet.do(fleet.roles.request_swap(0.0, "e0", "e1"))
    assert fleet.split == "dp"
    assert len(only(commands, Decided).decision.moves) == 2
    assert len({command.decision for command in commands if isinstance(command, MoveRole)}) == 1


def test_a_guard_that_is_on_or_off_holds_in_words() -> None:
    fleet = HandFleet("ppdd")
    fleet.roles.set_hold(0.0, True, "upgrade")
    fleet.do(fleet.roles.request_move(1.0, "e0", "decode"))
    assert fleet.last.reason == "move e0 to decode; held by hold: the operator holds role moves"
    fleet.roles.set_hold(2.0, False, "")
    fleet["e0"].draining = True
    fleet.do(fleet.roles.request_move(3.0, "e0", "decode"))
    assert fleet.last.reason == "move e0 to decode; held by draining of e0: it is draining"


def test_a_swap_of_which_one_half_is_held_does_not_happen() -> None:
    fleet = HandFleet("pd")
    fleet["e1"].pin = "decode"
    fleet.do(fleet.roles.request_swap(0.0, "e0", "e1"))
    assert (fleet.split, fleet.last.outcome) == ("pd", "held")


@pytest.mark.parametrize(("engine", "role"), [("nobody", "prefill"), ("e0", "prefill")])
def test_a_request_without_sense_is_answered_all_the_same(engine: str, role: str) -> None:
    fleet = HandFleet("pd")
    commands = fleet.roles.request_move(0.0, engine, role)  # type: ignore[arg-type]
    assert engine in only(commands, Decided).decision.reason
    assert len(commands) == 1


def test_a_swap_without_sense_is_answered_all_the_same() -> None:
    fleet = HandFleet("ppd")
    assert "both prefill" in only(fleet.roles.request_swap(0.0, "e0", "e1"), Decided).decision.reason
    assert "nobody" in only(fleet.roles.request_swap(0.0, "nobody", "e1"), Decided).decision.reason
