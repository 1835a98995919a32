"""Pairs: which are out and avoided, which are tried again, and what canaries condemn."""

from collections.abc import Callable

import pytest

from narwhal.control.commands import (
    AnyCommand,
    EngineChanged,
    PairChanged,
    StartDecode,
    StartPrefill,
    StartWhole,
    TryPair,
)
from narwhal.control.events import (
    CanaryArmed,
    EngineObserved,
    FirstToken,
    LegFailed,
    Outcome,
    PairTried,
    RequestFinished,
    Tick,
)
from tests.control.driving import Driver, only

Spoilt = Callable[[str, str], bool]


def outcomes(driver: Driver, seconds: int, spoilt: Spoilt, odd: str = "") -> list[tuple[str, str]]:
    """Run canaries for some seconds; which pairs were tried, in order. `odd`: an engine that computes otherwise."""
    tried: list[tuple[str, str]] = []
    t = driver.t
    waiting: list[AnyCommand] = []
    for _ in range(seconds * 4):
        t += 0.25
        waiting += driver.feed(Tick(t))
        while waiting:
            command = waiting.pop(0)
            if isinstance(command, TryPair):
                wrong = spoilt(command.producer, command.consumer)
                own = "odd" if command.consumer == odd else "usual"
                said = "spoilt" if wrong else own
                tried.append((command.producer, command.consumer))
                outcome: Outcome = "wrong" if said != own else "right"
                pair = command.number, command.producer, command.consumer
                waiting += driver.feed(PairTried(t, *pair, outcome, said, own, 0.1, 10, "pull"))
    return tried


def armed(roles: str, share: float = 0.2) -> Driver:
    driver = Driver(roles, recovery={"canary": {"share": share}, "link_retry_s": 1000})
    driver.feed(CanaryArmed(0.0, 50))
    return driver


def out(driver: Driver) -> set[tuple[str, str]]:
    return {(producer, consumer) for producer, some in driver.pool.severed.items() for consumer in some}


def ejected(driver: Driver) -> list[str]:
    return [c.engine for c in driver.commands if isinstance(c, EngineChanged) and c.change == "ejected"]


# Pairs that are out


def test_a_pair_that_is_out_is_avoided_and_both_its_engines_serve_others() -> None:
    driver = Driver("ppdd")
    driver.control.health.links.sever(0.0, "e0", "e2", "a test")
    driver.pool.refresh()
    pairs = set()
    for number in range(30):
        driver.engine("e0").probation = number % 2 == 0  # so that both producers have their turn
        driver.pool.refresh()
        prefill = only(driver.arrive(number, 10), StartPrefill).engine
        pairs.add((prefill, only(driver.prefilled(number), StartDecode).engine))
        driver.feed(RequestFinished(driver.t, number, 5))
        driver.engine("e3").probation = number % 4 < 2
        driver.pool.refresh()
    assert ("e0", "e2") not in pairs
    assert {("e0", "e3"), ("e1", "e2")} <= pairs


def test_a_pair_that_failed_lately_is_chosen_after_others() -> None:
    driver = Driver("pdd")
    driver.control.health.links.failed(0.0, "e0", "e1")
    for number in range(3):
        driver.arrive(number, 10)
        assert only(driver.prefilled(number), StartDecode).engine == "e2"
    driver.feed(Tick(100.0))
    driver.arrive(9, 10)
    assert only(driver.prefilled(9), StartDecode).engine == "e1"  # forgotten after a minute, and the emptier


def test_a_producer_that_nobody_may_read_from_serves_whole_requests_and_last() -> None:
    driver = Driver("ppd")
    driver.control.health.links.sever(0.0, "e0", "e2", "a test")
    driver.pool.refresh()
    assert driver.pool.stranded == ("e0",)
    assert only(driver.arrive(1, 600), StartPrefill).engine == "e1"
    assert only(driver.arrive(2, 600), StartPrefill).engine == "e1"
    assert only(driver.arrive(3, 600), StartWhole).engine == "e0"


def test_a_pair_comes_back_after_two_tries_that_succeed() -> None:
    driver = Driver("ppd", recovery={"link_retry_s": 10})
    driver.control.health.links.sever(0.0, "e0", "e2", "a test")
    commands = driver.feed(Tick(10.5))
    for t, outcome in ((10.6, "right"), (10.7, "leg_2"), (21.0, "right"), (21.1, "right")):
        probe = [c for c in commands if isinstance(c, TryPair)] or [
            c for c in driver.feed(Tick(t)) if isinstance(c, TryPair)
        ]
        assert (probe[0].producer, probe[0].consumer) == ("e0", "e2")
        assert out(driver) == {("e0", "e2")}
        commands = driver.feed(PairTried(t, probe[0].number, "e0", "e2", outcome))  # type: ignore[arg-type]
    assert only(commands, PairChanged).change == "in"
    assert out(driver) == set()


def test_handoffs_are_counted_on_their_pair() -> None:
    driver = Driver("pd")
    driver.arrive(1, 300)
    driver.prefilled(1, 0.5)
    driver.feed(FirstToken(0.8, 1))
    driver.feed(RequestFinished(0.9, 1, 5))
    driver.arrive(2, 200)
    driver.prefilled(2)
    driver.feed(RequestFinished(1.5, 2, 5))  # in one piece: nobody saw its first token
    link = driver.engine("e1").links["e0"]
    assert (link.handoffs, link.tokens, link.timed, link.seconds) == (2, 500, 1, pytest.approx(0.3))


# Canaries


def test_unarmed_or_without_a_share_none_is_sent() -> None:
    assert outcomes(Driver("ppdd"), 60, lambda p, c: False) == []
    assert outcomes(armed("ppdd", share=0.0), 60, lambda p, c: False) == []
    driver = armed("ppdd")
    driver.feed(CanaryArmed(1.0, 0))
    assert outcomes(driver, 60, lambda p, c: False) == []


def test_canaries_keep_to_their_share_pairs_in_use_come_first_and_all_have_their_turn() -> None:
    driver = armed("ppdd", share=0.01)
    tried = outcomes(driver, 600, lambda p, c: False)
    cost_s = len(tried) * 2 * 0.05  # 50 tokens at 1,000 a second, on producer and consumer
    assert 0.005 * 600 * 2 < cost_s <= 0.01 * 600 * 2 + 0.1
    used = [(p, c) for p in ("e0", "e1") for c in ("e2", "e3")]
    assert set(tried[:5]) >= set(used)
    assert sum(pair in used for pair in tried) > len(tried) / 2
    assert len(set(tried)) == 12  # every directed pair
    assert not out(driver)
    assert not ejected(driver)


def test_one_pair_with_wrong_kv_is_taken_out() -> None:
    driver = armed("ppdd")
    outcomes(driver, 120, lambda p, c: (p, c) == ("e0", "e3"))
    assert out(driver) == {("e0", "e3")}
    assert ejected(driver) == []


def test_a_single_wrong_answer_condemns_nothing() -> None:
    driver = armed("ppdd")
    told: list[int] = []
    outcomes(driver, 60, lambda p, c: (p, c) == ("e0", "e3") and not told and not told.append(1))  # type: ignore[func-returns-value]
    assert (told, out(driver), ejected(driver)) == ([1], set(), [])


def test_a_producer_of_wrong_kv_is_ejected() -> None:
    driver = armed("ppdd")
    outcomes(driver, 120, lambda p, c: p == "e1")
    assert ejected(driver) == ["e1"]
    assert all(producer == "e1" for producer, _ in out(driver))


def test_a_consumer_of_wrong_kv_is_ejected() -> None:
    driver = armed("ppdd")
    outcomes(driver, 120, lambda p, c: c == "e2")
    assert ejected(driver) == ["e2"]
    assert all(consumer == "e2" for _, consumer in out(driver))


def test_an_engine_that_computes_otherwise_than_the_fleet_is_ejected_and_no_pair_is_blamed() -> None:
    driver = armed("ppdd")
    outcomes(driver, 120, lambda p, c: False, odd="e2")
    assert ejected(driver) == ["e2"]
    assert out(driver) == set()


def test_engines_of_another_contract_may_answer_otherwise() -> None:
    driver = armed("pppddd")
    for name in ("e2", "e5"):
        driver.engine(name).fingerprint = "new"
    outcomes(driver, 120, lambda p, c: False, odd="e5")
    assert ejected(driver) == []


def test_kv_that_was_read_after_its_lease_is_an_alarm_by_itself() -> None:
    driver = Driver("pd")
    assert driver.feed(EngineObserved(0.1, "e0", 0, 0, 0, late_notifications=3)) == []  # what was before says nothing
    alarm = only(driver.feed(EngineObserved(1.1, "e0", 0, 0, 0, late_notifications=5)), EngineChanged)
    assert (alarm.engine, alarm.change) == ("e0", "alarm")
    assert driver.engine("e0").vitals.alarms == 2
    assert driver.feed(EngineObserved(2.1, "e0", 0, 0, 0, late_notifications=5)) == []


def test_what_waits_for_kv_over_a_pair_is_sent_on_when_the_pair_is_taken_out() -> None:
    driver = Driver("ppdd")
    placed: dict[tuple[str, str], list[int]] = {}
    for number in range(8):
        producer = only(driver.arrive(number, 10), StartPrefill).engine
        placed.setdefault((producer, only(driver.prefilled(number), StartDecode).engine), []).append(number)
    pair, (failed, waiting, *_) = max(placed.items(), key=lambda item: len(item[1]))
    commands = driver.feed(LegFailed(driver.t, failed, "decode", pair[1], "handoff"))
    while tries := [c for c in commands if isinstance(c, TryPair)]:
        commands = []
        for probe in tries:
            outcome: Outcome = "leg_2" if (probe.producer, probe.consumer) == pair else "right"
            commands += driver.feed(PairTried(driver.t, probe.number, probe.producer, probe.consumer, outcome))
    assert only(driver.commands, PairChanged).change == "out"
    begun_anew = {c.request for c in commands if isinstance(c, StartPrefill)}
    assert waiting in begun_anew
    assert begun_anew <= set(placed[pair])
    again = only(driver.prefilled(waiting), StartDecode).engine
    assert again != pair[1]
