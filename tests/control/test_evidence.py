"""What failures count against whom: strikes, requests that are to blame, the last engine of a role."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from narwhal.control.commands import Abort, EngineChanged, ProbeEngine, StartDecode, StartPrefill, TryPair
from narwhal.control.events import (
    DeadlinePassed,
    EngineDown,
    EngineObserved,
    EngineUp,
    FirstToken,
    LegFailed,
    PairTried,
    Tick,
    TokensObserved,
)
from narwhal.control.strikes import strike, strikes
from tests.control.driving import Driver, only

CAUSES: Any = ["connection", "timeout", "stream", "status", "handoff", "overload"]


def changes(driver: Driver, change: str = "ejected") -> list[str]:
    """Engines that were ejected, or changed otherwise, in order."""
    return [c.engine for c in driver.commands if isinstance(c, EngineChanged) and c.change == change]


@given(st.lists(st.tuples(st.floats(0, 100), st.sampled_from(CAUSES)), min_size=1, max_size=30), st.floats(1, 300))
def test_strikes_decay_by_half_and_never_below_nothing(struck: list[tuple[float, str]], half_life_s: float) -> None:
    engine, t = Driver("ppd").engine("e0"), 0.0
    for wait_s, cause in struck:
        before = strikes(engine, t + wait_s, half_life_s)
        assert 0 <= before <= strikes(engine, t, half_life_s)
        t += wait_s
        assert strike(engine, t, cause, half_life_s) == pytest.approx(before + 1)
    now = strikes(engine, t, half_life_s)
    assert strikes(engine, t + half_life_s, half_life_s) == pytest.approx(now / 2)
    assert strikes(engine, t + 60 * half_life_s, half_life_s) < 1e-6 * now


def test_three_cut_answers_in_a_row_eject_and_three_in_many_minutes_do_not() -> None:
    for pause_s, ejected in ((1.0, ["e0"]), (120.0, [])):
        driver = Driver("ppd")
        for n in range(3):
            driver.feed(LegFailed(n * pause_s, n, "whole", "e0", "stream"))
        assert changes(driver) == ejected


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([400, 404, 422, 501])), max_size=60))
def test_4xx_never_counts(answers: list[tuple[int, int]]) -> None:
    driver = Driver("ppdd")
    for number, (engine, status) in enumerate(answers):
        driver.arrive(number, t=0.01 * number)
        driver.feed(LegFailed(0.01 * number, number, "prefill", f"e{engine}", "client", status=status))
        driver.feed(LegFailed(0.01 * number, number, "decode", f"e{engine}", "client", True, status))
    assert all(driver.engine(name).open for name in driver.pool.engines)
    assert all(engine.vitals.strikes == 0 for engine in driver.pool.engines.values())


@pytest.mark.parametrize("cause", ["status", "stream"])
def test_a_5xx_on_two_engines_blames_the_request(cause: Any) -> None:
    driver = Driver("pppdd")
    for number in range(20):
        t = float(number)
        first = only(driver.arrive(number, t=t), StartPrefill).engine
        again = driver.feed(LegFailed(t, number, "prefill", first, cause, status=500))
        second = only(again, StartPrefill).engine
        assert second != first
        over = driver.feed(LegFailed(t, number, "prefill", second, cause, status=500))
        assert only(over, Abort).request == number
        assert not [c for c in over if isinstance(c, StartPrefill)]  # no third engine
    assert all(engine.vitals.strikes == 0 for engine in driver.pool.engines.values())
    assert not [c for c in driver.commands if isinstance(c, TryPair)]
    assert all(driver.engine(name).open for name in driver.pool.engines)


def test_a_5xx_that_another_engine_makes_good_is_a_strike() -> None:
    driver = Driver("pppdd")
    engine = only(driver.arrive(1), StartPrefill).engine
    driver.feed(LegFailed(0.1, 1, "prefill", engine, "status", status=500))
    assert driver.engine(engine).vitals.strikes == 0
    driver.prefilled(1, 0.2)
    driver.feed(FirstToken(0.3, 1))
    assert driver.engine(engine).vitals.strikes == 1


def test_a_5xx_that_no_other_engine_was_asked_about_is_asked_of_the_engine_itself() -> None:
    driver = Driver("ppd", serving={"admission": "open", "max_retries": 0})
    engine = only(driver.arrive(1), StartPrefill).engine
    probe = only(driver.feed(LegFailed(0.1, 1, "prefill", engine, "status", status=500)), TryPair)
    assert (probe.producer, probe.consumer) == (engine, engine)
    assert not driver.engine(engine).open
    driver.feed(PairTried(0.2, probe.number, engine, engine, "right"))
    assert driver.engine(engine).open


def test_an_overdue_leg_is_evidence_and_goes_elsewhere() -> None:
    driver = Driver("ppd")
    engine = only(driver.arrive(1), StartPrefill).engine
    commands = driver.feed(DeadlinePassed(60.0, 1, "prefill"))
    assert only(commands, ProbeEngine).engine == engine
    assert only(commands, StartPrefill).engine != engine
    assert driver.engine(engine).vitals.strikes == 1


def test_an_overdue_leg_of_an_engine_that_is_ejected_for_it_goes_elsewhere_once() -> None:
    driver = Driver("pppd", recovery={"eject_after": 1})
    engine = only(driver.arrive(1), StartPrefill).engine
    commands = driver.feed(DeadlinePassed(60.0, 1, "prefill"))
    assert changes(driver) == [engine]
    assert only(commands, StartPrefill).engine != engine
    assert driver.pool.requests[1].attempts == 1


def test_what_waits_for_a_silent_engine_is_sent_on_and_its_consumer_is_spared() -> None:
    driver = Driver("ppdd")
    first = only(driver.arrive(1), StartPrefill).engine
    driver.arrive(2)
    consumer = only(driver.prefilled(1, 0.5), StartDecode).engine
    commands = driver.feed(EngineDown(1.0, first, "timeout"))
    again = [c for c in commands if isinstance(c, StartPrefill)]
    assert [c.request for c in again] == [1]  # it may still be reading KV from the silent one
    assert again[0].engine != first
    assert driver.engine(consumer).open
    assert consumer not in driver.pool.requests[1].excluded


def test_a_look_that_is_late_while_tokens_come_suspects_nobody() -> None:
    driver = Driver("pdd")
    driver.arrive(1)
    engine = only(driver.prefilled(1, 0.5), StartDecode).engine
    driver.feed(FirstToken(0.6, 1))
    driver.feed(TokensObserved(9.5, (1,), (4,)))
    assert driver.feed(EngineDown(10.0, engine, "timeout")) == []
    assert driver.engine(engine).open
    assert only(driver.feed(EngineDown(12.0, engine, "timeout")), EngineChanged).change == "suspected"


def test_kv_that_was_read_before_an_engine_fell_silent_is_not_read_again() -> None:
    driver = Driver("ppdd")
    first = only(driver.arrive(1), StartPrefill).engine
    driver.prefilled(1, 0.5)
    driver.feed(EngineUp(2.0, first, "life-1"))
    commands = driver.feed(EngineDown(4.0, first, "timeout"))
    assert not [c for c in commands if isinstance(c, StartPrefill)]


@st.composite
def soft(draw: Any) -> Any:
    """Evidence that leaves room for doubt."""
    kind, engine, more = draw(st.integers(0, 4)), draw(st.integers(0, 4)), draw(st.integers(0, 9))
    return kind, f"e{engine}", f"e{draw(st.integers(0, 4))}", draw(st.sampled_from(CAUSES)), more


@examples(max_examples=150, deadline=None)
@given(roles=st.sampled_from(["pd", "ppd", "pdd", "ppddd"]), events=st.lists(soft(), max_size=80))
def test_the_last_of_a_role_is_kept_on_soft_evidence(roles: str, events: list[Any]) -> None:
    driver = Driver(roles)
    for number, (kind, name, other, cause, more) in enumerate(events):
        t = number * 0.5
        engines = driver.pool.engines
        if name not in engines or other not in engines:
            continue
        if kind == 0:
            driver.feed(LegFailed(t, number, "whole", name, cause))
        elif kind == 1:
            driver.feed(EngineDown(t, name, "status"))
        elif kind == 2:
            driver.feed(EngineObserved(t, name, 1, 0, 0, number, 20, 0.01 * (1 + more)))
        elif kind == 3:
            driver.arrive(number, t=t)
            for command in [c for c in driver.commands if isinstance(c, TryPair)][-3:]:
                outcome = "leg_2" if more % 2 else "leg_1"
                driver.feed(PairTried(t, command.number, command.producer, command.consumer, outcome))
        else:
            driver.feed(Tick(t))
        for role in ("prefill", "decode"):
            assert any(engine.live and engine.role == role for engine in engines.values()), (role, number)
