"""The controller around the policies: timers, acknowledgements, records, edges."""

import msgspec
import pytest

from narwhal.control.commands import Decided, MoveRole
from narwhal.control.roles import KEPT, Timer
from tests.control.driving import only
from tests.control.fleets import HandFleet


def test_a_move_has_the_epoch_of_the_pool_and_the_number_of_its_decision() -> None:
    fleet = HandFleet("ppd")
    commands = fleet.roles.request_move(1.0, "e0", "decode")
    move, decision = only(commands, MoveRole), only(commands, Decided).decision
    assert (move.engine, move.role, move.epoch, move.decision) == ("e0", "decode", fleet.pool.epoch, decision.id)
    assert fleet["e0"].moving == "decode"
    assert fleet["e0"].role == "prefill"
    assert fleet.pool.split() == (1, 2)


def test_a_move_is_done_when_it_is_acknowledged_with_its_own_epoch() -> None:
    fleet = HandFleet("ppd")
    move = only(fleet.roles.request_move(1.0, "e0", "decode"), MoveRole)
    fleet.roles.moved(2.0, "e0", "decode", move.epoch - 1)
    assert fleet["e0"].moving == "decode"
    fleet.roles.moved(2.0, "e0", "decode", move.epoch)
    assert (fleet["e0"].role, fleet["e0"].moving, fleet["e0"].role_since_t) == ("decode", None, 2.0)
    fleet.roles.moved(3.0, "e0", "decode", move.epoch)
    assert fleet["e0"].role_since_t == 2.0


def test_a_move_that_fails_leaves_the_engine_where_it_was_and_says_so() -> None:
    fleet = HandFleet("ppd")
    move = only(fleet.roles.request_move(1.0, "e0", "decode"), MoveRole)
    commands = fleet.roles.move_failed(2.0, "e0", "decode", move.epoch, "driver gone")
    assert "driver gone" in only(commands, Decided).decision.reason
    assert (fleet["e0"].role, fleet["e0"].moving) == ("prefill", None)
    assert fleet.roles.move_failed(2.0, "e0", "decode", move.epoch, "again") == []


def test_an_engine_that_left_between_move_and_answer_is_forgotten() -> None:
    fleet = HandFleet("ppd")
    move = only(fleet.roles.request_move(1.0, "e0", "decode"), MoveRole)
    del fleet.pool.engines["e0"]
    assert fleet.roles.moved(2.0, "e0", "decode", move.epoch) == []


def test_every_evaluation_has_a_number_and_one_of_ten_that_found_nothing_is_reported() -> None:
    fleet = HandFleet("ppdd")
    fleet.run(100, prefill=0.1)
    assert fleet.last.id == 100
    assert len(fleet.decided) == 10
    assert list(fleet.roles.decisions) == fleet.decided


def test_moves_and_held_moves_are_all_reported_and_only_so_many_are_kept() -> None:
    fleet = HandFleet("pddd", "projection", advisory=True)
    fleet.run(KEPT + 50, prefill=9.0)
    assert len(fleet.roles.decisions) == KEPT
    assert {decision.outcome for decision in fleet.roles.decisions} == {"advised"}


def test_a_record_tells_the_candidates_with_the_current_split_first_and_what_they_came_from() -> None:
    fleet = HandFleet("ppdd", "projection")
    fleet.offer(4, prefill=1.9)
    fleet.run(1, prefill=1.9)
    decision = fleet.last
    current = decision.candidates[0]
    assert (current.prefill, current.decode) == (decision.prefill, decision.decode) == (2, 2)
    assert {(c.prefill, c.decode) for c in decision.candidates} == {(2, 2), (3, 1), (1, 3)}
    assert decision.inputs["prefill_offered"] == pytest.approx(1.9, rel=0.1)
    assert decision.inputs["prefill_capacity"] == 2.0
    assert "prefill is at" in decision.reason


def test_records_are_plain_json_without_infinities() -> None:
    fleet = HandFleet("pppd", thresholds={"dwell_s": 5.0, "cooldown_s": 5.0})
    fleet["e3"].streams = 10_000
    fleet.run(20, prefill=0.4)
    fleet.do(fleet.roles.request_move(20.0, "e0", "decode"))
    for decision in fleet.decided:
        text = msgspec.json.encode(decision)
        assert b"null" not in text  # what an infinity would become
        assert msgspec.json.decode(text, type=type(decision)) == decision


def test_an_engine_without_a_profile_stops_everything_but_floor_repair() -> None:
    fleet = HandFleet("ddd", "projection")
    fleet["e2"].measured = False
    fleet.run(20, prefill=9.0)
    assert fleet.split == "pdd"
    assert {d.trigger for d in fleet.decided if d.outcome == "moved"} == {"floor"}
    assert "e2 has no profile" in fleet.last.reason
    fleet["e2"].measured = True
    fleet["e1"].measured = False
    fleet["e1"].ejected = True  # not in the fleet at present
    fleet.run(20, prefill=9.0)
    assert "no profile" not in fleet.last.reason


def test_a_controller_that_is_off_moves_nothing_by_itself_but_carries_out_what_the_operator_asks() -> None:
    fleet = HandFleet("pdd", enabled=False, min_prefill=2)
    fleet.run(20, prefill=9.0)
    fleet.do(fleet.roles.urgent(fleet.t))
    assert not fleet.decided
    fleet.do(fleet.roles.request_move(20.0, "e1", "prefill"))
    assert fleet.split == "ppd"


def test_a_fleet_without_one_role_has_nothing_to_weigh() -> None:
    fleet = HandFleet("ddd", min_prefill=0)
    fleet.run(5, prefill=9.0)
    assert not fleet.decided


def test_a_timer_keeps_its_pace_with_early_and_late_calls_and_does_not_catch_up() -> None:
    timer = Timer(1.0)
    assert timer.due(0.0)
    assert not timer.due(0.5)
    assert timer.due(0.995)
    assert timer.due(2.2)
    assert timer.due(100.0)
    assert not timer.due(100.5)
    assert timer.due(101.0)


def test_time_that_runs_backwards_evaluates_nothing_twice() -> None:
    fleet = HandFleet("ppdd")
    fleet.run(5, prefill=0.5)
    number = fleet.last.id
    for t in (4.0, 1.0, -50.0, 5.0):
        assert fleet.roles.tick(t) == []
    assert fleet.last.id == number
