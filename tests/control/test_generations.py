"""New lives of engines, and the way back of those that were out."""

from typing import Any

import pytest

from narwhal.control.commands import AnyCommand, CheckEngine, EngineChanged, ProbeEngine, StartPrefill, TryPair
from narwhal.control.events import EngineChecked, EngineDown, EngineUp, LegFailed, Outcome, PairTried, Tick
from tests.control.driving import Driver, only


def restarted(roles: str = "ppdd", **recovery: Any) -> Driver:
    """A fleet whose first engine is another process now."""
    driver = Driver(roles, recovery={"readmit_after": 1, "readmit_backoff_s": 5, **recovery})
    driver.feed(EngineChecked(0.0, "e0", "life-1", "contract-1"))
    change = only(driver.feed(EngineUp(1.0, "e0", "life-2")), EngineChanged)
    assert (change.engine, change.change) == ("e0", "ejected")
    return driver


def check(driver: Driver, t: float, contract: str = "contract-1", **more: Any) -> list[AnyCommand]:
    """A healthy look, and what the engine says of itself."""
    driver.feed(EngineUp(t, "e0", "life-2"))
    return driver.feed(EngineChecked(t, "e0", more.get("generation", "life-2"), contract, more.get("problem", "")))


def tried(driver: Driver, t: float, commands: list[AnyCommand], outcome: Outcome = "right") -> list[AnyCommand]:
    """The one probe among some commands ended."""
    probe = only(commands, TryPair)
    assert probe.purpose == "readmit"
    return driver.feed(PairTried(t, probe.number, probe.producer, probe.consumer, outcome))


def change(commands: list[AnyCommand], engine: str = "e0") -> EngineChanged:
    return next(c for c in commands if isinstance(c, EngineChanged) and c.engine == engine)


def test_a_new_generation_goes_through_every_stage_before_it_has_work() -> None:
    driver = restarted()
    assert [c for c in driver.commands if isinstance(c, CheckEngine) and c.engine == "e0"]
    commands = driver.feed(EngineChecked(2.1, "e0", "life-2", "contract-1"))
    alone = only(commands, TryPair)
    assert (alone.producer, alone.consumer) == ("e0", "e0")
    commands = tried(driver, 2.2, commands)
    produces = only(commands, TryPair)
    assert produces.producer == "e0"
    peer = produces.consumer
    commands = tried(driver, 2.3, commands)
    consumes = only(commands, TryPair)
    assert (consumes.producer, consumes.consumer) == (peer, "e0")
    commands = tried(driver, 2.4, commands)
    assert only(commands, ProbeEngine).engine == "e0"
    assert only(driver.arrive(1, t=2.45), StartPrefill).engine == "e1"  # until the last look it has no work
    assert not driver.engine("e0").open
    back = change(driver.feed(EngineUp(2.5, "e0", "life-2")))
    assert back.change == "readmitted"
    assert back.reason == f"healthy, completes prompts, hands KV over both ways with {peer}"
    assert driver.engine("e0").open


def test_what_was_measured_stays_with_an_unchanged_contract_and_goes_with_another() -> None:
    for contract, scale in (("contract-1", 1.4), ("contract-2", 1.0)):
        driver = restarted()
        driver.engine("e0").prefill_scale = 1.4
        check(driver, 2.0, contract)
        assert driver.engine("e0").prefill_scale == scale


@pytest.mark.parametrize(
    ("more", "said"),
    [({"problem": "it does not serve m"}, "it does not serve m"), ({"generation": "life-3"}, "started anew meanwhile")],
)
def test_an_engine_that_is_not_what_it_should_be_stays_out_and_is_asked_again_later(
    more: dict[str, str], said: str
) -> None:
    driver = restarted()
    refused = change(check(driver, 2.0, **more))
    assert refused.change == "refused"
    assert said in refused.reason
    before = len(driver.commands)
    driver.feed(EngineUp(3.0, "e0", "life-2"))
    assert not [c for c in driver.commands[before:] if isinstance(c, CheckEngine)]  # not at once
    commands = driver.feed(EngineUp(8.0, "e0", "life-2"))
    assert only(commands, CheckEngine).engine == "e0"


def test_the_same_reason_is_told_once() -> None:
    driver = restarted()
    assert change(check(driver, 2.0, problem="it does not serve m")).change == "refused"
    assert check(driver, 8.0, problem="it does not serve m") == []
    assert change(check(driver, 16.0, problem="it does not answer")).change == "refused"


def test_a_completion_that_fails_keeps_it_out() -> None:
    driver = restarted()
    refused = change(tried(driver, 2.2, check(driver, 2.0), "leg_1"))
    assert refused.reason == "not readmitted: it does not complete a prompt"
    assert not driver.engine("e0").open


def test_a_second_peer_is_tried_where_the_first_fails_and_the_link_to_that_one_is_out() -> None:
    driver = restarted()
    commands = tried(driver, 2.2, check(driver, 2.0))
    first = only(commands, TryPair).consumer
    commands = tried(driver, 2.3, commands, "leg_2")
    second = only(commands, TryPair).consumer
    assert second not in (first, "e0")
    assert driver.pool.severed == {"e0": [first]}
    for t in (2.4, 2.5):
        commands = tried(driver, t, commands)
    assert change(driver.feed(EngineUp(2.6, "e0", "life-2"))).change == "readmitted"


def test_two_peers_that_cannot_read_from_it_keep_it_out() -> None:
    driver = restarted()
    commands = tried(driver, 2.2, check(driver, 2.0))
    commands = tried(driver, 2.3, commands, "leg_2")
    peer = only(commands, TryPair).consumer
    refused = change(tried(driver, 2.4, commands, "leg_2"))
    assert (refused.change, refused.reason) == ("refused", f"not readmitted: {peer} cannot read KV from it")


def test_without_a_live_peer_it_comes_back_without_kv_having_been_tried() -> None:
    driver = restarted("pd")
    driver.feed(EngineDown(1.5, "e1", "connection", hard=True))
    tried(driver, 2.2, check(driver, 2.0))
    back = change(driver.feed(EngineUp(2.4, "e0", "life-2")))
    assert (back.change, "KV was not tried" in back.reason) == ("readmitted", True)


def test_a_look_that_fails_on_the_way_begins_the_way_anew() -> None:
    driver = restarted()
    commands = tried(driver, 2.2, check(driver, 2.0))
    driver.feed(EngineDown(2.3, "e0", "timeout"))
    assert tried(driver, 2.4, commands) == []
    assert only(driver.feed(EngineUp(3.0, "e0", "life-2")), CheckEngine).engine == "e0"


def test_pairs_of_a_former_life_say_nothing_of_the_present_one() -> None:
    driver = Driver("ppdd")
    links = driver.control.health.links
    links.sever(0.5, "e0", "e2", "a test")
    links.sever(0.5, "e3", "e0", "a test")
    links.link("e1", "e0").canaries = ["wrong"]
    driver.feed(EngineUp(1.0, "e0", "life-2"))
    assert driver.pool.severed == {}
    assert links.link("e1", "e0").canaries == []


def test_an_engine_that_keeps_restarting_stays_out_until_the_window_has_passed() -> None:
    driver = restarted(restarts={"most": 2, "window_s": 100})
    driver.feed(EngineUp(2.0, "e0", "life-3"))
    before = len(driver.commands)
    driver.feed(EngineUp(3.0, "e0", "life-4"))
    for t in range(4, 90):
        driver.feed(EngineUp(float(t), "e0", "life-4"))
    said = [c for c in driver.commands[before:] if isinstance(c, EngineChanged)]
    assert [c.reason for c in said] == ["not readmitted: it started 3 times in 100 s"]
    assert not [c for c in driver.commands[before:] if isinstance(c, CheckEngine)]
    assert only(driver.feed(EngineUp(101.5, "e0", "life-4")), CheckEngine).engine == "e0"


def test_soft_ejections_in_a_row_wait_longer_each_time() -> None:
    driver = Driver("ppd", recovery={"readmit_after": 1, "readmit_backoff_s": 4, "eject_after": 1})
    waits = []
    t = 0.0
    for n in range(3):
        t += 1
        driver.feed(LegFailed(t, n, "whole", "e0", "stream"))
        assert driver.engine("e0").ejected
        out_t = t
        while "e0" not in driver.control.health.generations.under_way:
            t += 1
            driver.feed(EngineUp(t, "e0", "life-1"))
        waits.append(t - out_t)
        commands = driver.feed(EngineChecked(t, "e0", "life-1", "c"))
        for _ in range(3):
            commands = tried(driver, t, commands)
        driver.feed(EngineUp(t, "e0", "life-1"))
        assert not driver.engine("e0").ejected
    assert waits == [4, 8, 16]


def test_a_probe_that_nobody_reports_does_not_keep_it_out_for_good() -> None:
    driver = restarted()
    check(driver, 2.0)
    for t in range(3, 200):
        driver.feed(Tick(float(t)))
    assert only(driver.feed(EngineUp(200.0, "e0", "life-2")), CheckEngine).engine == "e0"
