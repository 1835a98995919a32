"""Which engines may have work."""

import pytest

from narwhal.control.commands import EngineChanged, ProbeEngine, Refuse, StartPrefill
from narwhal.control.events import (
    EngineDown,
    EngineJoined,
    EngineObserved,
    EngineUp,
    LegFailed,
    PrefillFinished,
)
from tests.control.driving import CURVES, Driver, only


def test_an_engine_has_no_work_before_its_first_healthy_look() -> None:
    driver = Driver("d")
    joined = driver.feed(EngineJoined(0.0, "e9", "prefill", CURVES, True))
    only(joined, ProbeEngine)
    assert not driver.engine("e9").open
    driver.feed(EngineUp(0.1, "e9", "life-1"))
    assert only(driver.arrive(1), StartPrefill).engine == "e9"


def test_a_refused_connection_ejects_at_once_even_the_last() -> None:
    driver = Driver("pd")
    change = only(driver.feed(EngineDown(0.1, "e0", "connection", hard=True)), EngineChanged)
    assert (change.engine, change.change) == ("e0", "ejected")


def test_a_soft_failure_suspects_and_several_eject() -> None:
    driver = Driver("ppd")
    assert only(driver.feed(EngineDown(0.1, "e0", "timeout")), EngineChanged).change == "suspected"
    assert not driver.engine("e0").open
    assert driver.engine("e0").live
    driver.feed(EngineDown(0.2, "e0", "timeout"))
    assert only(driver.feed(EngineDown(0.3, "e0", "timeout")), EngineChanged).change == "ejected"


def test_a_healthy_look_clears_suspicion() -> None:
    driver = Driver("ppd")
    driver.feed(EngineDown(0.1, "e0", "timeout"))
    driver.feed(EngineUp(0.2, "e0", "life-1"))
    assert driver.engine("e0").open


def test_soft_evidence_does_not_take_a_role_its_last_engine() -> None:
    driver = Driver("pd")
    for n in range(10):
        driver.feed(EngineDown(0.1 * n, "e0", "status"))
    assert driver.engine("e0").open


def test_silence_for_long_enough_leaves_no_doubt() -> None:
    driver = Driver("pd")
    for n in range(5):
        assert driver.feed(EngineDown(0.1 * n, "e0", "timeout")) == []
    assert only(driver.feed(EngineDown(1.0, "e0", "timeout")), EngineChanged).change == "ejected"


@pytest.mark.parametrize("misses", [0, 1, 4])
def test_retry_after_of_a_refusal_is_no_longer_than_it_takes_until_a_hung_engine_is_out(misses: int) -> None:
    driver = Driver("pd", serving={"admission": "predictive"})
    driver.feed(EngineObserved(0.0, "e1", running=8, waiting=4, kv_used_tokens=0))
    for n in range(misses):
        driver.feed(EngineDown(0.1 * n, "e1", "timeout"))
    refusal = only(driver.arrive(1), Refuse)
    assert refusal.code == "decode"
    assert 0 < refusal.retry_after_s <= (6 - misses) * (1.0 + 1.5)


def test_overload_and_client_errors_are_no_strikes() -> None:
    driver = Driver("ppd")
    engine = only(driver.arrive(1), StartPrefill).engine
    driver.feed(LegFailed(0.1, 1, "prefill", engine, "overload", status=503))
    assert driver.engine(engine).vitals.strikes == 0


def test_a_failed_connection_asks_for_a_look() -> None:
    driver = Driver("ppd")
    engine = only(driver.arrive(1), StartPrefill).engine
    assert only(driver.feed(LegFailed(0.1, 1, "prefill", engine, "connection")), ProbeEngine).engine == engine


def test_foreign_load_is_the_excess_at_the_look() -> None:
    driver = Driver("pd")
    driver.arrive(1)
    driver.prefilled(1)
    driver.feed(EngineObserved(0.1, "e1", running=3, waiting=1, kv_used_tokens=600))
    assert driver.engine("e1").foreign_streams == 3
    assert driver.engine("e1").foreign_kv_tokens == 500
    assert driver.engine("e1").charged_streams == 4
    driver.feed(EngineObserved(0.2, "e1", running=1, waiting=0, kv_used_tokens=100))
    assert driver.engine("e1").charged_streams == 1


def test_a_fleet_with_nobody_up_refuses_with_503() -> None:
    driver = Driver("pd")
    for name in ("e0", "e1"):
        driver.feed(EngineDown(0.1, name, "connection", hard=True))
    assert only(driver.arrive(1), Refuse).status == 503


def test_a_broken_connection_lets_no_leg_start_before_the_generation_is_read_again() -> None:
    driver = Driver("pd")
    engine = only(driver.arrive(1), StartPrefill).engine
    driver.feed(LegFailed(0.1, 1, "prefill", engine, "connection"))
    assert not driver.engine(engine).open  # though it is the last of its role
    assert driver.engine(engine).live
    driver.feed(EngineUp(0.2, engine, "life-1"))
    assert driver.engine(engine).open


def test_a_look_that_breaks_makes_the_generation_unknown_and_a_late_one_does_not() -> None:
    driver = Driver("pd")
    driver.feed(EngineDown(0.1, "e0", "timeout"))
    assert driver.engine("e0").open
    driver.feed(EngineDown(0.2, "e0", "connection"))
    assert not driver.engine("e0").open


def test_another_id_in_leg_1_s_answer_is_a_restart_that_no_look_has_seen() -> None:
    driver = Driver("ppd")
    engine = only(driver.arrive(1), StartPrefill).engine
    assert not [c for c in driver.feed(PrefillFinished(0.1, 1, 0, "id-1")) if isinstance(c, ProbeEngine)]
    driver.engine("e1" if engine == "e0" else "e0").draining = True
    driver.pool.refresh()
    assert only(driver.arrive(2), StartPrefill).engine == engine
    commands = driver.feed(PrefillFinished(0.2, 2, 0, "id-2"))
    assert [c.engine for c in commands if isinstance(c, ProbeEngine)] == [engine]
    assert not driver.engine(engine).open
    driver.feed(EngineUp(0.3, engine, "life-2"))
    assert driver.engine(engine).told_id == ""
