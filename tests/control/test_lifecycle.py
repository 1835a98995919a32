"""A request from its arrival to its end."""

import pytest

from narwhal.control.commands import Abort, Refuse, StartDecode, StartPrefill, StartWhole, TryPair, Wait
from narwhal.control.events import (
    DeadlinePassed,
    EngineDown,
    EngineLeft,
    FirstToken,
    LegFailed,
    PairTried,
    RequestCancelled,
    RequestFinished,
    TokensObserved,
)
from narwhal.control.state import Phase
from tests.control.driving import Driver, check_sums, only


def test_two_legs_on_two_engines() -> None:
    driver = Driver("pd")
    assert only(driver.arrive(1), StartPrefill).engine == "e0"
    leg2 = only(driver.prefilled(1), StartDecode)
    assert (leg2.engine, leg2.producer) == ("e1", "e0")
    driver.feed(FirstToken(0.1, 1))
    driver.feed(TokensObserved(0.2, (1,), (10,)))
    assert driver.engine("e1").kv_tokens == 110
    assert driver.feed(RequestFinished(0.3, 1, 10)) == []
    assert driver.pool.requests == {}
    check_sums(driver.control)


def test_an_engine_is_given_two_prompts_and_the_rest_wait_in_order() -> None:
    driver = Driver("pd")
    for number in (1, 2):
        only(driver.arrive(number, 2000), StartPrefill)
    for number in (3, 4):
        assert only(driver.arrive(number, 2000), Wait).what == "queue"
    assert only(driver.prefilled(1), StartPrefill).request == 3
    assert only(driver.prefilled(2), StartPrefill).request == 4


def test_more_prompts_than_two_while_they_fit_one_batch() -> None:
    driver = Driver("pd")
    started = [only(driver.arrive(number, 250), StartPrefill) for number in range(4)]
    assert len(started) == 4
    only(driver.arrive(5, 250), Wait)


def test_what_waits_is_placed_again_after_a_move() -> None:
    driver = Driver("pdd", controller={"enabled": True})
    for number in range(4):
        driver.arrive(number, 2000)
    assert len(driver.pool.queue) == 2
    driver.control.pool.engines["e1"].role = "prefill"
    driver.pool.refresh()
    assert {c.engine for c in driver.control.lifecycle.dispatch(0.0) if isinstance(c, StartPrefill)} == {"e1"}


def test_a_request_that_cannot_be_split_goes_whole_to_one_engine() -> None:
    driver = Driver("pd")
    whole = only(driver.arrive(1, whole=True), StartWhole)
    assert driver.engine(whole.engine).streams == 1
    driver.feed(FirstToken(0.1, 1))
    assert driver.engine(whole.engine).prefills == {}
    driver.feed(RequestFinished(0.2, 1, 3))
    check_sums(driver.control)


def test_a_role_without_engines_is_served_aggregated_by_policy() -> None:
    only(Driver("pp").arrive(1), StartWhole)
    refused = only(Driver("pp", recovery={"degraded": "refuse"}).arrive(1), Refuse)
    assert (refused.status, refused.code) == (503, "no_engine")


def test_a_single_engine_serves_both_roles_even_when_degraded_is_refused() -> None:
    only(Driver("p", recovery={"degraded": "refuse"}).arrive(1), StartWhole)


def test_legs_pair_only_inside_a_fingerprint_and_a_cohort_of_one_serves_whole() -> None:
    driver = Driver("ppd", fingerprints={"e0": "old", "e1": "new", "e2": "old"})
    first = driver.arrive(1, 2000)
    second = driver.arrive(2, 2000)
    assert only(first, StartPrefill).engine == "e0"
    assert only(second, StartWhole).engine == "e1"
    assert only(driver.prefilled(1), StartDecode).engine == "e2"


def test_a_handoff_waits_for_a_seat_and_gets_the_first_that_is_free() -> None:
    driver = Driver("pd")
    for number in range(9):
        driver.arrive(number, 10)
        driver.prefilled(number)
    assert [request.id for request in driver.pool.seats] == [8]
    assert only(driver.feed(RequestFinished(1.0, 0, 5)), StartDecode).request == 8


def test_a_seat_that_does_not_come_hands_over_to_the_engines_own_queue() -> None:
    driver = Driver("pd")
    waits = []
    for number in range(9):
        driver.arrive(number, 10)
        waits += [c for c in driver.prefilled(number) if isinstance(c, Wait)]
    assert [(wait.request, wait.what) for wait in waits] == [(8, "seat")]
    assert waits[0].until < 15.0  # half of the lease
    assert only(driver.feed(DeadlinePassed(waits[0].until, 8, "seat")), StartDecode).engine == "e1"


def test_a_handoff_is_not_used_after_half_its_lease() -> None:
    driver = Driver("pd")
    for number in range(9):
        driver.arrive(number, 10)
        driver.prefilled(number)
    again = driver.feed(DeadlinePassed(15.1, 8, "seat"))
    assert only(again, StartPrefill).request == 8
    assert not [c for c in again if isinstance(c, StartDecode)]


def test_a_decode_leg_stays_off_its_producer() -> None:
    driver = Driver("pd")
    driver.arrive(1)
    driver.engine("e0").role = "decode"
    driver.pool.refresh()
    assert only(driver.prefilled(1), StartDecode).engine == "e1"


def test_the_producer_answers_whole_when_nobody_else_is_left() -> None:
    driver = Driver("pd")
    driver.arrive(1)
    driver.feed(EngineDown(0.1, "e1", "connection", hard=True))
    assert only(driver.prefilled(1), StartWhole).engine == "e0"


def test_a_failed_leg_goes_to_another_engine_and_never_back() -> None:
    driver = Driver("ppd")
    engine = only(driver.arrive(1), StartPrefill).engine
    again = only(driver.feed(LegFailed(0.1, 1, "prefill", engine, "stream")), StartPrefill)
    assert again.engine != engine
    over = driver.feed(LegFailed(0.2, 1, "prefill", again.engine, "stream"))
    assert only(over, Refuse).code == "upstream"
    check_sums(driver.control)


def test_the_producer_of_a_failed_handoff_is_avoided_but_not_given_up() -> None:
    driver = Driver("ppdd")
    producer = only(driver.arrive(1), StartPrefill).engine
    consumer = only(driver.prefilled(1), StartDecode).engine
    again = only(driver.feed(LegFailed(0.1, 1, "decode", consumer, "handoff")), StartPrefill).engine
    assert again != producer
    pause = only(driver.feed(LegFailed(0.2, 1, "prefill", again, "stream")), Wait)
    driver.feed(DeadlinePassed(0.25, 1, pause.what))
    assert driver.pool.requests[1].phase is Phase.QUEUED  # the other one is broken, and this one in question
    for probe in [c for c in driver.commands if isinstance(c, TryPair)]:
        driver.feed(PairTried(0.3, probe.number, probe.producer, probe.consumer, "right"))
    assert driver.pool.requests[1].prefill_engine == producer  # it never failed by itself
    assert only(driver.prefilled(1), StartDecode).engine != consumer


def test_a_5xx_on_two_engines_blames_the_request() -> None:
    driver = Driver("pppd")
    first = only(driver.arrive(1), StartPrefill).engine
    second = only(driver.feed(LegFailed(0.1, 1, "prefill", first, "status", status=500)), StartPrefill).engine
    over = driver.feed(LegFailed(0.2, 1, "prefill", second, "status", status=500))
    assert only(over, Abort).status == 502
    assert not [c for c in over if isinstance(c, StartPrefill)]


def test_nothing_is_sent_again_once_the_client_has_seen_a_byte() -> None:
    driver = Driver("pdd")
    driver.arrive(1)
    leg2 = only(driver.prefilled(1), StartDecode)
    driver.feed(FirstToken(0.1, 1))
    assert only(driver.feed(LegFailed(0.2, 1, "decode", leg2.engine, "stream", visible=True)), Abort).request == 1


def test_a_clients_own_error_is_nobodys_fault() -> None:
    driver = Driver("ppd")
    engine = only(driver.arrive(1), StartPrefill).engine
    assert driver.feed(LegFailed(0.1, 1, "prefill", engine, "client", status=400)) == []
    assert driver.engine(engine).open
    assert driver.pool.requests == {}


def test_a_report_about_a_leg_that_was_replaced_does_nothing() -> None:
    driver = Driver("ppd")
    first = only(driver.arrive(1), StartPrefill).engine
    driver.feed(LegFailed(0.1, 1, "prefill", first, "stream"))
    before = len(driver.commands)
    driver.feed(LegFailed(0.2, 1, "prefill", first, "client"))
    assert 1 in driver.pool.requests
    assert not [c for c in driver.commands[before:] if isinstance(c, StartPrefill)]


def test_a_retried_request_with_no_engine_left_does_not_block_the_queue() -> None:
    driver = Driver("ppd")
    first = only(driver.arrive(1, 2000), StartPrefill).engine
    other = "e1" if first == "e0" else "e0"
    for number in (2, 3):
        driver.arrive(number, 2000)
    driver.arrive(4, 2000)
    driver.feed(LegFailed(0.1, 1, "prefill", first, "status", status=500))
    assert driver.engine(first).prefills  # others went to the engine that request 1 may not go back to
    assert driver.engine(other).prefills
    check_sums(driver.control)


@pytest.mark.parametrize("kind", ["ejected", "left"])
def test_what_waits_for_a_lost_engine_is_sent_elsewhere(kind: str) -> None:
    driver = Driver("ppd")
    engine = only(driver.arrive(1), StartPrefill).engine
    event = EngineDown(0.1, engine, "connection", hard=True) if kind == "ejected" else EngineLeft(0.1, engine)
    assert only(driver.feed(event), StartPrefill).engine != engine
    check_sums(driver.control)


def test_a_cancelled_request_frees_what_it_held_wherever_it_is() -> None:
    driver = Driver("pd")
    driver.arrive(1, 2000)
    driver.arrive(2, 2000)
    driver.arrive(3, 2000)
    driver.feed(RequestCancelled(0.1, 3))
    driver.prefilled(1)
    driver.feed(RequestCancelled(0.2, 1))
    driver.feed(RequestCancelled(0.2, 2))
    assert driver.pool.requests == {}
    check_sums(driver.control)


def test_deadlines() -> None:
    driver = Driver("ppdd", serving={"admission": "open", "queue": {"max_wait_s": 5}})
    engine = only(driver.arrive(1), StartPrefill).engine
    assert only(driver.feed(DeadlinePassed(60.0, 1, "prefill")), StartPrefill).engine != engine
    leg2 = only(driver.prefilled(1), StartDecode)
    again = driver.feed(DeadlinePassed(90.0, 1, "first_token"))
    assert not [c for c in again if isinstance(c, StartDecode)]
    assert driver.pool.requests[1].excluded[-1] in (leg2.engine, leg2.producer)
    assert only(driver.feed(DeadlinePassed(99.0, 1, "request")), Abort).status == 504
    check_sums(driver.control)


def test_a_wait_in_the_queue_ends_with_503_and_retry_after() -> None:
    driver = Driver("pd")
    for number in (1, 2, 3):
        commands = driver.arrive(number, 2000)
    wait = only(commands, Wait)
    refused = only(driver.feed(DeadlinePassed(wait.until, 3, "queue")), Refuse)
    assert (refused.status, refused.code) == (503, "queue_timeout")
    assert refused.retry_after_s > 0


def test_events_about_unknown_things_do_nothing() -> None:
    driver = Driver("pd")
    before = len(driver.commands)
    for event in (
        FirstToken(1.0, 99),
        TokensObserved(1.0, (99,), (1,)),
        RequestFinished(1.0, 99, 1),
        LegFailed(1.0, 99, "decode", "nobody", "stream"),
        EngineDown(1.0, "nobody", "timeout"),
        EngineLeft(1.0, "nobody"),
        DeadlinePassed(1.0, 99, "gap"),
    ):
        driver.feed(event)
    assert driver.commands[before:] == []
