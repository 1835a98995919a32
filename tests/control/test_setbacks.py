"""What becomes of requests that engines fail: retries with a budget and pauses, streams that go on elsewhere."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narwhal.control.budget import Budget
from narwhal.control.commands import Abort, AnyCommand, Refuse, Resume, StartDecode, StartPrefill, StartWhole, Wait
from narwhal.control.events import (
    DeadlinePassed,
    EngineDown,
    EngineLeft,
    FirstToken,
    LegFailed,
    RequestCancelled,
    RequestFinished,
    ResumeFailed,
    ResumeReady,
    TokensObserved,
)
from narwhal.control.setbacks import PAUSE_S, pause_s
from narwhal.control.state import Request
from narwhal.fleet.model import Budget as Limits
from tests.control.driving import Driver, check_sums, only


@given(
    st.lists(st.booleans(), max_size=200),
    st.floats(0, 1),
    st.integers(0, 20),
)
def test_no_more_is_tried_than_successes_pay_for(history: list[bool], share: float, reserve: int) -> None:
    budget, limits = Budget(), Limits(share=share, reserve=reserve)
    tried = served = 0
    for success in history:
        if success:
            budget.earn(limits)
            served += 1
        else:
            tried += budget.spend(limits)
        assert 0 <= budget.left(limits) <= reserve
        assert tried <= reserve + share * served + 1e-6


def test_pauses_are_spread_below_a_bound_that_doubles() -> None:
    def pause(number: int, attempts: int) -> float:
        request = Request(number, None, "", 1, 1)  # type: ignore[arg-type]
        request.attempts = attempts
        return pause_s(request)

    for attempts, most in ((1, PAUSE_S), (2, 2 * PAUSE_S), (3, 4 * PAUSE_S)):
        pauses = sorted(pause(number, attempts) for number in range(100))
        assert all(abs(each - most * place / 100) < most * 0.03 for place, each in enumerate(pauses))


def failed(driver: Driver, command: StartPrefill | StartDecode | StartWhole, cause: str = "stream", **more: Any) -> Any:
    leg: Any = {StartPrefill: "prefill", StartDecode: "decode", StartWhole: "whole"}[type(command)]
    cause_: Any = cause
    return driver.feed(LegFailed(driver.t + 0.01, command.request, leg, command.engine, cause_, **more))


def test_a_first_retry_goes_at_once_and_the_next_after_a_pause() -> None:
    driver = Driver("pppd")
    first = only(driver.arrive(1), StartPrefill)
    second = only(failed(driver, first), StartPrefill)
    wait = only(failed(driver, second), Wait)
    assert wait.what == "retry"
    assert driver.t <= wait.until <= driver.t + 2 * PAUSE_S
    third = only(driver.feed(DeadlinePassed(wait.until, 1, "retry")), StartPrefill)
    assert len({first.engine, second.engine, third.engine}) == 3


def test_a_busy_engine_is_followed_by_a_pause_that_may_be_cancelled() -> None:
    driver = Driver("ppd")
    commands = failed(driver, only(driver.arrive(1), StartPrefill), "overload", status=503)
    assert only(commands, Wait).what == "retry"
    driver.feed(RequestCancelled(driver.t, 1))
    assert not driver.pool.requests
    check_sums(driver.control)


def test_nobody_is_left_to_wait_for() -> None:
    driver = Driver("pd")
    assert only(failed(driver, only(driver.arrive(1), StartPrefill), "overload", status=503), Refuse).code == "upstream"


def test_without_budget_a_request_ends_with_its_engine_until_others_were_served() -> None:
    budget = {"share": 0.5, "reserve": 1}
    driver = Driver("ppppdddd", serving={"admission": "open", "retry_budget": budget})
    assert only(failed(driver, only(driver.arrive(1), StartPrefill)), StartPrefill)
    assert only(failed(driver, only(driver.arrive(2), StartPrefill)), Abort).code == "upstream"
    driver.arrive(3)
    driver.prefilled(3)
    driver.feed(RequestFinished(driver.t, 3, 5))
    driver.feed(RequestFinished(driver.t, 1, 5))
    assert only(failed(driver, only(driver.arrive(4), StartPrefill)), StartPrefill)


# Streams


def streaming(driver: Driver, number: int = 1, **more: Any) -> StartDecode:
    """A stream of 100 prompt tokens, with 10 tokens out."""
    driver.arrive(number, **{"resumable": True, **more})
    start = only(driver.prefilled(number), StartDecode)
    driver.feed(FirstToken(driver.t + 0.1, number))
    driver.feed(TokensObserved(driver.t, (number,), (10,)))
    return start


def resumed(driver: Driver, commands: list[AnyCommand], kept: int = 10) -> list[AnyCommand]:
    command = only(commands, Resume)
    return driver.feed(ResumeReady(driver.t + 0.01, command.request, 100 + kept, 50 - kept))


def test_a_stream_goes_on_where_it_was_not_before_and_nothing_stays_charged() -> None:
    driver = Driver("ppdd")
    lost = streaming(driver)
    commands = failed(driver, lost, "stream", visible=True)
    assert only(commands, Resume).engine != lost.engine
    assert not driver.engine(lost.engine).streams
    again = only(resumed(driver, commands), StartPrefill)
    assert driver.engine(again.engine).prefill_tokens == 110
    rest = only(driver.prefilled(1), StartDecode)
    assert rest.engine != lost.engine
    assert driver.engine(rest.engine).kv_tokens == 110
    check_sums(driver.control)
    driver.feed(FirstToken(driver.t, 1))
    driver.feed(RequestFinished(driver.t, 1, 50))
    assert not driver.pool.requests
    check_sums(driver.control)
    assert all(e.streams == e.kv_tokens == e.prefill_tokens == 0 for e in driver.pool.engines.values())


def test_a_tenant_is_settled_for_what_its_request_used_alone() -> None:
    driver = Driver("ppdd")
    account = driver.pool.accounts["default"]
    lost = streaming(driver)
    resumed(driver, failed(driver, lost, "stream", visible=True))
    request = driver.pool.requests[1]
    assert (request.prompt_tokens, request.delivered, request.produced) == (110, 10, 10)
    driver.feed(RequestFinished(driver.t, 1, 50))
    assert account.open == 0


def test_the_rest_is_retried_like_a_request_before_its_first_token() -> None:
    driver = Driver("pppddd")
    commands = resumed(driver, failed(driver, streaming(driver), "stream", visible=True))
    again = only(failed(driver, only(commands, StartPrefill), "connection"), StartPrefill)
    driver.prefilled(1)
    assert driver.pool.requests[1].attempts == 1
    assert again.engine in driver.pool.engines


@pytest.mark.parametrize(
    ("serving", "more"),
    [
        ({}, {"resumable": False}),
        ({"continuation": {"enabled": False}}, {}),
        ({"continuation": {"max_per_request": 0}}, {}),
        ({"continuation": {"budget": {"reserve": 0}}}, {}),
    ],
)
def test_other_streams_end_with_their_engine(serving: dict[str, Any], more: dict[str, Any]) -> None:
    driver = Driver("ppdd", serving={"admission": "open", **serving})
    over = only(failed(driver, streaming(driver, **more), "stream", visible=True), Abort)
    assert (over.status, over.code) == (502, "upstream")
    assert not driver.pool.requests


def test_a_stream_goes_on_so_often_and_no_more() -> None:
    driver = Driver("pdddd", serving={"admission": "open", "continuation": {"max_per_request": 2}})
    start, engines = streaming(driver), []
    for _ in range(2):
        engines.append(start.engine)
        resumed(driver, failed(driver, start, "connection", visible=True))
        start = only(driver.prefilled(1), StartDecode)
        driver.feed(FirstToken(driver.t, 1))
    assert start.engine not in engines
    assert only(failed(driver, start, "connection", visible=True), Abort).code == "upstream"


def test_an_error_on_two_engines_blames_the_request() -> None:
    driver = Driver("pdddd")
    resumed(driver, failed(driver, streaming(driver), "stream", visible=True, status=500))
    start = only(driver.prefilled(1), StartDecode)
    driver.feed(FirstToken(driver.t, 1))
    assert only(failed(driver, start, "stream", visible=True, status=500), Abort).code == "upstream"


def test_another_engine_is_asked_when_one_does_not_tell() -> None:
    driver = Driver("ppdd")
    first = only(failed(driver, streaming(driver), "stream", visible=True), Resume)
    second = only(driver.feed(ResumeFailed(driver.t, 1, first.engine, "broke")), Resume)
    third = only(driver.feed(DeadlinePassed(second.until, 1, "resume")), Resume)
    assert len({first.engine, second.engine, third.engine}) == 3
    over = only(driver.feed(ResumeFailed(driver.t, 1, third.engine, "broke")), Abort)
    assert "no engine is left" in over.message
    assert not driver.pool.requests


def test_a_text_that_does_not_fit_ends_the_stream() -> None:
    driver = Driver("ppdd")
    asked = only(failed(driver, streaming(driver), "stream", visible=True), Resume)
    over = only(driver.feed(ResumeFailed(driver.t, asked.request, "", "its ids do not end with its text")), Abort)
    assert "its ids do not end with its text" in over.message
    check_sums(driver.control)


def test_a_stalled_stream_goes_on_and_a_request_that_took_too_long_does_not() -> None:
    driver = Driver("ppdd")
    lost = streaming(driver)
    assert only(driver.feed(DeadlinePassed(driver.t + 30, 1, "gap")), Resume).engine != lost.engine
    streaming(driver, 2)
    over = only(driver.feed(DeadlinePassed(driver.t + 30, 2, "request")), Abort)
    assert (over.status, over.code) == (504, "timeout")


@pytest.mark.parametrize("gone", [False, True], ids=["ejected", "left"])
def test_streams_of_an_engine_that_is_out_go_on_if_they_can(gone: bool) -> None:
    driver = Driver("pdd")
    lost = streaming(driver).engine
    other = streaming(driver, 2, resumable=False)
    while other.engine != lost:  # the two decode engines fill in turn
        other = streaming(driver, other.request + 1, resumable=False)
    event = EngineLeft(driver.t, lost) if gone else EngineDown(driver.t, lost, "connection", hard=True)
    commands = driver.feed(event)
    assert only(commands, Resume).request == 1
    assert [c.request for c in commands if isinstance(c, Abort)] == ([other.request] if gone else [])
    check_sums(driver.control)
