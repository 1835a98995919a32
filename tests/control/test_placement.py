"""Which engine serves a leg."""

from narwhal.control.commands import AnyCommand, StartDecode, StartPrefill, StartWhole
from narwhal.control.events import EngineObserved
from narwhal.fleet.model import Slo
from tests.control.driving import Driver, only


def test_the_least_backlog_in_seconds_wins_and_ties_go_to_the_lower_id() -> None:
    driver = Driver("ppd")
    assert only(driver.arrive(1, 900), StartPrefill).engine == "e0"
    assert only(driver.arrive(2, 100), StartPrefill).engine == "e1"
    assert only(driver.arrive(3, 100), StartPrefill).engine == "e1"


def test_backlog_counts_what_is_left_of_the_prompt_in_service() -> None:
    driver = Driver("ppd")
    driver.arrive(1, 900, t=0.0)
    driver.arrive(2, 500, t=0.8)
    assert driver.engine("e0").backlog_s(0.8) < driver.engine("e1").backlog_s(0.8)
    assert only(driver.arrive(3, 100, t=0.8), StartPrefill).engine == "e0"


def test_prefill_prefers_an_engine_without_resident_decodes() -> None:
    driver = Driver("ppd")
    driver.engine("e0").streams = 1
    assert only(driver.arrive(1, 900), StartPrefill).engine == "e1"
    assert only(driver.arrive(2, 900), StartPrefill).engine == "e1"


def test_decode_prefers_an_engine_without_resident_prefills_then_the_most_room() -> None:
    driver = Driver("pddd")
    driver.engine("e1").prefills[99] = (0.0, 1.0, 0)
    driver.feed(EngineObserved(0.0, "e2", running=2, waiting=0, kv_used_tokens=0))
    for number, engine in ((1, "e3"), (2, "e3"), (3, "e2")):
        driver.arrive(number)
        assert only(driver.prefilled(number), StartDecode).engine == engine


def test_a_stream_that_would_break_the_pace_of_all_waits() -> None:
    driver = Driver("pd", slo=Slo(ttft_s=2.0, tpot_s=0.0135))
    for number in range(3):
        driver.arrive(number)
        only(driver.prefilled(number), StartDecode)
    driver.arrive(3)
    assert not [c for c in driver.prefilled(3) if isinstance(c, StartDecode)]  # 14 ms is over the target of 13.5


def test_a_decode_engine_with_room_takes_a_prompt_that_prefill_cannot_serve_in_time() -> None:
    def late(overflow: bool) -> list[AnyCommand]:
        driver = Driver("pd", controller={"enabled": False, "projection": {"overflow": overflow}})
        driver.arrive(1, 1500)
        return driver.arrive(2, 1000)  # 1.5 s of backlog and 1 s of its own, over the target of 2 s

    assert only(late(overflow=True), StartWhole).engine == "e1"
    assert only(late(overflow=False), StartPrefill).engine == "e0"


def test_an_overflowing_prompt_stays_off_a_decode_engine_that_is_half_full() -> None:
    driver = Driver("pd", controller={"enabled": False, "projection": {"overflow": True}})
    driver.feed(EngineObserved(0.0, "e1", running=5, waiting=0, kv_used_tokens=0))
    driver.arrive(1, 1500)
    assert only(driver.arrive(2, 1000), StartPrefill).engine == "e0"


def test_a_prompt_is_in_service_only_since_the_one_before_it_left() -> None:
    driver = Driver("pd")
    driver.arrive(1, 100, t=0.0)  # 0.1 s each
    driver.arrive(2, 100, t=0.0)
    engine = driver.engine("e0")
    assert list(engine.prefills) == [1, 2]
    assert abs(engine.backlog_s(0.05) - 0.15) < 1e-9
    driver.prefilled(1, t=0.1)
    assert list(engine.prefills) == [2]
    assert abs(engine.backlog_s(0.1) - 0.1) < 1e-9
    assert abs(engine.backlog_s(0.14) - 0.06) < 1e-9
