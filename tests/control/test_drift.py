"""Engines that become slow: probation, ejection, and none of it where the whole fleet is slow."""

from hypothesis import given, settings
from hypothesis import strategies as st

from narwhal.control.commands import AnyCommand, EngineChanged, StartDecode, TryPair
from narwhal.control.events import EngineObserved, FirstToken, PairTried
from tests.control.driving import CURVES, Driver, only

ALONE_S = CURVES.interval_s(1, 0)


def paced(driver: Driver, seconds: int, ratios: dict[str, float]) -> list[EngineChanged]:
    """Looks once a second that show these decode intervals over the profile's; what they changed."""
    commands: list[AnyCommand] = []
    for _ in range(seconds):
        driver.t += 1
        for name, ratio in ratios.items():
            commands += driver.feed(EngineObserved(driver.t, name, 1, 0, 0, int(driver.t), 20, ratio * ALONE_S))
    return [c for c in commands if isinstance(c, EngineChanged)]


def words(found: list[EngineChanged]) -> list[tuple[str, str]]:
    return [(c.engine, c.change) for c in found]


def test_a_slow_engine_is_placed_last_and_recovers() -> None:
    driver = Driver("pddd")
    assert words(paced(driver, 20, {"e1": 2.0, "e2": 1.0, "e3": 1.1})) == [("e1", "probation")]
    for number in range(4):
        driver.arrive(number, 10)
        assert only(driver.prefilled(number), StartDecode).engine != "e1"
    assert words(paced(driver, 20, {"e1": 1.0, "e2": 1.0, "e3": 1.1})) == [("e1", "recovered")]


def test_a_very_slow_engine_is_ejected_after_probation() -> None:
    driver = Driver("pddd")
    found = paced(driver, 30, {"e1": 4.0, "e2": 1.0, "e3": 1.0})
    assert words(found) == [("e1", "probation"), ("e1", "ejected")]
    assert "4.00 of the profile's" in found[-1].reason


def test_one_bad_second_of_an_engine_on_probation_does_not_eject_it() -> None:
    driver = Driver("pddd")
    paced(driver, 30, {"e1": 2.0, "e2": 1.0, "e3": 1.0})
    assert words(paced(driver, 1, {"e1": 40.0, "e2": 1.0, "e3": 1.0})) == []
    assert words(paced(driver, 20, {"e1": 1.0, "e2": 1.0, "e3": 1.0})) == [("e1", "recovered")]


def test_an_engine_that_nobody_can_be_compared_with_is_not_ejected() -> None:
    driver = Driver("pddd")
    assert words(paced(driver, 60, {"e1": 9.0})) == [("e1", "probation")]


def test_a_short_hiccup_changes_nothing() -> None:
    driver = Driver("pddd")
    paced(driver, 10, {"e1": 1.0, "e2": 1.0, "e3": 1.0})
    assert paced(driver, 3, {"e1": 5.0, "e2": 1.0, "e3": 1.0}) == []
    assert paced(driver, 20, {"e1": 1.0, "e2": 1.0, "e3": 1.0}) == []


@settings(max_examples=40, deadline=None)
@given(st.floats(1.0, 20.0), st.integers(2, 5))
def test_where_the_whole_fleet_is_slow_none_is_at_fault(ratio: float, decode: int) -> None:
    driver = Driver("p" + "d" * decode)
    assert paced(driver, 40, {f"e{n}": ratio for n in range(1, decode + 1)}) == []


def test_the_last_of_a_role_may_be_slow() -> None:
    driver = Driver("pd")
    found = paced(driver, 60, {"e1": 9.0})
    assert words(found) == [("e1", "probation")]
    driver.arrive(1)
    assert only(driver.prefilled(1), StartDecode).engine == "e1"


def test_engines_without_a_profile_are_not_judged() -> None:
    driver = Driver("pdd", measured=False)
    assert paced(driver, 30, {"e1": 9.0, "e2": 1.0}) == []


def still(driver: Driver, seconds: int, tokens: int = 7) -> list[AnyCommand]:
    """Looks that show no further token; what they say of the load is as old as the last one."""
    commands: list[AnyCommand] = []
    for _ in range(seconds):
        driver.t += 1
        commands += driver.feed(EngineObserved(driver.t, "e1", 0, 0, 0, tokens))
    return commands


def test_an_engine_that_answers_looks_and_makes_no_token_is_asked_for_some() -> None:
    driver = Driver("pdd")
    driver.arrive(1)
    engine = only(driver.prefilled(1), StartDecode).engine
    assert engine == "e1"
    driver.feed(FirstToken(0.1, 1))
    assert not [c for c in still(driver, 4) if isinstance(c, TryPair)]
    probe = only(still(driver, 2), TryPair)
    assert (probe.producer, probe.consumer) == ("e1", "e1")
    out = driver.feed(PairTried(driver.t, probe.number, "e1", "e1", "leg_1"))
    assert ("e1", "ejected") in words([c for c in out if isinstance(c, EngineChanged)])


def test_an_engine_that_has_nothing_to_do_does_not_stand_still() -> None:
    driver = Driver("pdd")
    assert not [c for c in still(driver, 30) if isinstance(c, TryPair)]
