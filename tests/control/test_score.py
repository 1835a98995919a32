"""The projections, against the formulas worked out by hand."""

import math
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from narwhal.control.donors import Donors
from narwhal.control.load import Load, Offered, look, speed
from narwhal.control.score import WORST, Change, score
from tests.control.fleets import CURVES, HandFleet, settings

LOAD = Load(
    t=0.0,
    prefill=2,
    decode=2,
    speed=2.0,
    waiting_s=0.0,
    age=0.0,
    ttft_s=2.0,
    occupancy=0.0,
    pace=0.0,
    empty_pace=0.2,
    survival=1.0,
    offered=Offered(prefill=1.0, decode=0.0),
)


def load(**changes: Any) -> Load:
    return replace(LOAD, **changes)


def test_ttft_is_the_offered_load_while_nothing_waits() -> None:
    open_ = settings()
    assert score(open_, load(), Change()).ttft == pytest.approx(0.5)
    assert score(open_, load(), Change(engines=1, speed=1.0)).ttft == pytest.approx(1 / 3)
    assert score(open_, load(), Change(engines=-1, speed=-1.0)).ttft == pytest.approx(1.0)


def test_ttft_is_what_is_left_of_the_backlog_after_the_horizon() -> None:
    # 18 s wait for two engines that are half loaded: 18/2 + 5·(0.5 − 1) = 6.5 s, over a target of 2 s
    assert score(settings(), load(waiting_s=18.0), Change()).ttft == pytest.approx(6.5 / 2)
    # with one more engine: 18/3 + 5·(1/3 − 1) = 2.67 s
    assert score(settings(), load(waiting_s=18.0), Change(1, 1.0)).ttft == pytest.approx((6 - 10 / 3) / 2)


def test_ttft_counts_the_age_of_what_waits_per_engine() -> None:
    assert score(settings(), load(age=1.2), Change()).ttft == pytest.approx(1.2)
    assert score(settings(), load(age=1.2), Change(1, 1.0)).ttft == pytest.approx(0.8)


def test_decode_counts_what_survives_and_what_enters_over_the_room_for_visible_tokens() -> None:
    now = load(occupancy=1.4, survival=0.5, offered=Offered(1.0, 0.35))
    assert score(settings(), now, Change()).queue == pytest.approx((0.5 * 1.4 + 0.35) / (2 * 0.7))
    assert score(settings(), now, Change(-1, -1.0)).queue == pytest.approx((0.5 * 1.4 + 0.35) / (3 * 0.7))


def test_residents_of_a_donor_are_not_charged_to_the_decode_engines_that_remain() -> None:
    now = load(occupancy=1.4)
    assert score(settings(), now, Change(1, 1.0, occupancy=0.7)).queue == pytest.approx(1.0)


def test_admission_hides_decode_demand_so_the_recurrence_runs_twice_with_growth() -> None:
    now = load(occupancy=1.0, survival=0.5, offered=Offered(prefill=3.0, decode=0.4))
    # min(3, 3) / min(3, 2) = 1.5 of the streams that enter now; (0.5·(0.5·1 + 0.6) + 0.6) / (1·0.7)
    assert score(settings(admission="predictive"), now, Change(1, 1.0)).queue == pytest.approx(1.15 / 0.7)
    assert score(settings(), now, Change(1, 1.0)).queue == pytest.approx(0.9 / 0.7)


def test_tpot_is_the_empty_interval_and_its_share_of_the_room_above() -> None:
    # 10 ms of 50 are the empty batch; the engines fill half of the 40 ms above
    assert score(settings(), load(pace=1.0), Change()).tpot == pytest.approx(0.2 + 0.5 * 0.8)


def test_a_split_without_one_role_is_as_bad_as_it_gets_and_finite() -> None:
    nothing = score(settings(), load(), Change(-2, -2.0))
    assert nothing.ttft == WORST
    nothing = score(settings(), load(), Change(2, 2.0))
    assert (nothing.queue, nothing.tpot) == (WORST, WORST)
    assert math.isfinite(nothing.worst)


def test_demand_can_be_replaced_for_one_candidate() -> None:
    assert score(settings(), load(), Change(), Offered(2.0, 0.7)).worst == pytest.approx(1.0)


def test_resident_decodes_slow_a_prefill_engine_down() -> None:
    fleet = HandFleet("pd")
    engine = fleet["e0"]
    engine.curves = msgspec.structs.replace(CURVES, d1_s=0.001, d2_s=1e-6)
    assert speed(engine, engine) == 1.0
    engine.streams, engine.kv_tokens = 100, 50_000
    # a chunk takes 1 s: (1 + 0.1 + 0.05)/1 · 1000/(1000 − 100)
    assert speed(engine, engine) == pytest.approx(1 / (1.15 / 0.9))
    engine.streams = 1000
    assert speed(engine, engine) == 0.0


def test_a_faster_engine_counts_for_more_than_the_reference() -> None:
    fleet = HandFleet("ppd")
    fleet["e1"].curves = msgspec.structs.replace(CURVES, b_s=0.0005)
    assert look(fleet.pool, fleet.settings, fleet.demand, 0.0).speed == pytest.approx(3.0)


def test_the_prompt_in_service_is_no_backlog() -> None:
    fleet = HandFleet("ppd")
    fleet.send(1, "e0", 9.0)
    assert look(fleet.pool, fleet.settings, fleet.demand, 5.0).waiting_s == 0.0
    fleet.send(2, "e0", 1.5)
    fleet.queue(3, 0.5)
    assert look(fleet.pool, fleet.settings, fleet.demand, 5.0).waiting_s == pytest.approx(2.0)


def test_age_is_the_mean_over_engines_of_the_oldest_unstarted_prompt() -> None:
    fleet = HandFleet("ppd")
    fleet.send(1, "e0", 1.0, arrived_t=0.0)
    assert look(fleet.pool, fleet.settings, fleet.demand, 4.0).age == 0.0  # it is in service
    fleet.send(2, "e0", 1.0, arrived_t=1.0)
    assert look(fleet.pool, fleet.settings, fleet.demand, 4.0).age == pytest.approx((3.0 / 2.0 + 0) / 2)
    fleet.queue(3, arrived_t=3.0)
    assert look(fleet.pool, fleet.settings, fleet.demand, 4.0).age == pytest.approx((3.0 / 2.0 + 1.0 / 2.0) / 2)


def test_requests_that_left_the_queue_have_no_age() -> None:
    fleet = HandFleet("pd")
    fleet.pool.queue.remove(fleet.queue(1))
    assert look(fleet.pool, fleet.settings, fleet.demand, 9.0).age == 0.0


def test_streams_that_wait_for_a_seat_count_as_decode_occupancy() -> None:
    fleet = HandFleet("pd")
    fleet.demand.entered_decode(1.0, 0.02)
    for number in (7, 8, 9):
        fleet.pool.seats.push(fleet.request(number, 0.0))
    assert look(fleet.pool, fleet.settings, fleet.demand, 1.0).occupancy == pytest.approx(0.06)


def test_foreign_streams_fill_an_engine_too() -> None:
    fleet = HandFleet("pd")
    fleet["e1"].observe(requests=50, kv_tokens=0)
    assert look(fleet.pool, fleet.settings, fleet.demand, 1.0).occupancy == pytest.approx(0.5)


def test_an_engine_between_two_roles_counts_for_the_one_it_goes_to() -> None:
    fleet = HandFleet("pdd")
    fleet["e2"].moving = "prefill"
    now = look(fleet.pool, fleet.settings, fleet.demand, 0.0)
    assert (now.prefill, now.decode, now.speed) == (2, 1, 2.0)


def test_the_half_moved_engine_is_the_first_donor_then_the_emptiest_then_the_lower_id() -> None:
    fleet = HandFleet("pppdddd")
    fleet.decode(5)
    fleet["e4"].streams = 2
    fleet.send(1, "e6", 1.0)  # a decode engine that still prefills
    donors = Donors(fleet.pool, fleet.settings, 0.0)
    assert [engine.id for engine in donors.to("prefill", 9)] == ["e6", "e4"]
    fleet.send(2, "e0", 1.0)
    fleet["e1"].streams = 1  # a prefill engine that still decodes
    assert [engine.id for engine in Donors(fleet.pool, fleet.settings, 0.0).to("decode", 9)] == ["e1", "e2"]


def test_at_most_a_quarter_of_the_unpinned_engines_moves_and_at_least_two_may() -> None:
    assert Donors(HandFleet("ppdd").pool, settings(), 0.0).most == 2
    fleet = HandFleet("pppppppppppppddd")
    assert Donors(fleet.pool, fleet.settings, 0.0).most == 4
    for name in ("e0", "e1", "e2", "e3"):
        fleet[name].pin = "prefill"
    assert Donors(fleet.pool, fleet.settings, 0.0).most == 3


def test_two_engines_with_floors_of_one_have_no_candidate() -> None:
    fleet = HandFleet("pd")
    donors = Donors(fleet.pool, fleet.settings, 0.0)
    assert donors.changes("prefill", 2) == donors.changes("decode", 2) == []
