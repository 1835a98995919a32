"""Whether a request is let in."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narwhal.control.commands import Refuse, StartPrefill, StartWhole, Wait
from narwhal.control.corrections import keep_slack
from narwhal.control.events import EngineDown, EngineObserved, FirstToken, RequestFinished
from narwhal.control.state import Request
from narwhal.control.tenants import Accounts
from narwhal.fleet.model import PromptTarget, Slo
from tests.control.driving import Driver, only

PREDICTIVE = {"admission": "predictive", "margin": 0.1}


def test_an_idle_fleet_lets_in_what_fits() -> None:
    only(Driver("pd", serving=PREDICTIVE).arrive(1, 2000), StartPrefill)


def test_a_prompt_that_cannot_make_its_own_target_is_refused_without_retry_after() -> None:
    refused = only(Driver("pd", serving=PREDICTIVE).arrive(1, 2500), Refuse)
    assert (refused.status, refused.code, refused.retry_after_s) == (429, "prompt", 0.0)


def test_a_long_queue_refuses_with_the_excess_as_retry_after() -> None:
    driver = Driver("pd", serving=PREDICTIVE)
    only(driver.arrive(1, 1500), StartPrefill)
    refused = only(driver.arrive(2, 1500), Refuse)
    assert (refused.status, refused.code) == (429, "queue")
    assert 0.7 < refused.retry_after_s < 0.9  # 1.5 s of backlog and 1.5 s of its own, over 2.2 s


def test_open_admission_refuses_nothing_until_the_queue_is_full() -> None:
    driver = Driver("pd", serving={"admission": "open", "queue": {"max_requests": 3}})
    for number in range(5):
        assert not [c for c in driver.arrive(number, 5000) if isinstance(c, Refuse)]
    assert only(driver.arrive(6, 5000), Refuse).code == "queue_full"


def test_the_target_may_depend_on_the_prompt() -> None:
    slo = Slo(ttft_s=10.0, tpot_s=0.05, ttft_by_prompt=[PromptTarget(up_to_tokens=1000, ttft_s=0.5)])
    assert only(Driver("pd", serving=PREDICTIVE, slo=slo).arrive(1, 900), Refuse).code == "prompt"
    only(Driver("pd", serving=PREDICTIVE, slo=slo).arrive(1, 5000), StartPrefill)


def test_a_waiting_request_is_priced_again_when_it_wakes() -> None:
    driver = Driver("pd", serving=PREDICTIVE)
    for number in range(4):
        driver.arrive(number, 500)
    assert len(driver.pool.queue) >= 1
    late = [c for c in driver.prefilled(0, t=5.0) if isinstance(c, Refuse)]
    assert [refusal.code for refusal in late] == ["queue"] * len(late)
    assert late


def test_decode_engines_that_stay_full_refuse() -> None:
    driver = Driver("pd", serving=PREDICTIVE)
    driver.feed(EngineObserved(0.0, "e1", running=8, waiting=4, kv_used_tokens=0))
    refused = only(driver.arrive(1, 100), Refuse)
    assert refused.code == "decode"
    assert refused.retry_after_s > 0


@pytest.mark.parametrize("lost", ["e0", "e1"])
def test_a_role_that_serves_both_phases_refuses_at_once_what_it_has_no_room_for(lost: str) -> None:
    fleet = Driver("pd", serving=PREDICTIVE)
    fleet.feed(EngineDown(0.0, lost, "connection", hard=True))
    fleet.pool.handoff_s = 60.0  # from before; there is none now
    for number in range(8):
        only(fleet.arrive(number, 10), StartWhole)
        fleet.feed(FirstToken(fleet.t + 0.01, number))
    refusal = only(fleet.arrive(8, 10), Refuse)
    assert (refusal.code, refusal.status) == ("decode", 429)
    assert "both phases" in refusal.message
    assert 0 < refusal.retry_after_s <= 15.0
    fleet.feed(RequestFinished(fleet.t, 0, 5))
    only(fleet.arrive(9, 10), StartWhole)


def test_the_measured_handoff_is_part_of_the_price() -> None:
    driver = Driver("pd", serving=PREDICTIVE)
    for number in range(60):
        driver.arrive(number, 10)
        driver.prefilled(number)
        driver.feed(FirstToken(driver.t + 1.5, number))
        driver.feed(RequestFinished(driver.t, number, 1))
    only(driver.arrive(99, 10), StartPrefill)
    assert only(driver.arrive(100, 1000), Refuse).code == "queue"


def test_an_unmeasured_engine_admits_openly() -> None:
    driver = Driver("pd", serving=PREDICTIVE, measured=False)
    only(driver.arrive(1, 2500), StartPrefill)
    only(driver.arrive(2, 2500), StartPrefill)
    only(driver.arrive(3, 2500), Wait)


def test_a_handoff_above_the_target_is_measured_anew_by_one_request_at_a_time() -> None:
    fleet = Driver("pd", serving=PREDICTIVE)
    fleet.pool.handoff_s = 60.0  # engines stood still for a while
    number, served = 0, 0
    while fleet.pool.handoff_s > 2.0:  # with two prompts of 0.1 s the limit is 2.2 s
        assert number < 200
        only(fleet.arrive(number, t=fleet.t + 1), StartPrefill)
        refusal = only(fleet.arrive(number + 1), Refuse)
        assert (refusal.code, refusal.status) == ("queue", 429)
        assert refusal.retry_after_s > 0
        fleet.prefilled(number)
        fleet.feed(FirstToken(fleet.t + 0.1, number))
        fleet.feed(RequestFinished(fleet.t, number, 5))
        number, served = number + 2, served + 1
    assert served > 10
    only(fleet.arrive(number), StartPrefill)
    only(fleet.arrive(number + 1), StartPrefill)


def _late_share(late_by_s: float, spread_s: float, seed: int, requests: int = 2000) -> tuple[float, float]:
    """Share of first tokens after their price, of the last half, and the slack at the end; all near the limit."""
    pool, draw = Driver("pd").pool, random.Random(seed)
    late = 0
    for number in range(requests):
        request = Request(number, Accounts()["default"].shares[0], "", 1000, 10)
        request.arrived_t, request.ttft_s, request.price_s = 100.0, 2.0, 1.0 + pool.slack_s
        took_s = 1.0 + late_by_s + draw.uniform(-spread_s, spread_s)
        late += number >= requests / 2 and took_s > request.price_s
        keep_slack(pool, request, 100.0 + took_s)
    return late / (requests / 2), pool.slack_s


@settings(deadline=None)
@given(st.floats(0.0, 0.6), st.floats(0.1, 0.5), st.integers(0, 2**32))
def test_the_slack_keeps_nine_of_ten_first_tokens_within_their_price(
    late_by_s: float, spread_s: float, seed: int
) -> None:
    share, slack_s = _late_share(late_by_s, spread_s, seed)
    assert share <= 0.13
    assert 0.0 <= slack_s <= 2.0


def test_no_slack_is_kept_where_prices_are_high_enough() -> None:
    assert _late_share(-0.6, 0.1, 1) == (0.0, 0.0)


def test_slack_refuses_only_what_would_wait() -> None:
    fleet = Driver("pd", serving={"admission": "predictive"})
    fleet.pool.slack_s = 1.0
    only(fleet.arrive(1, 1900), StartPrefill)  # an idle fleet: its own 1.9 s, the target is 2 s
    fleet = Driver("pd", serving={"admission": "predictive"})
    fleet.pool.slack_s = 1.0
    only(fleet.arrive(1, 600), StartPrefill)
    assert only(fleet.arrive(2, 900), Refuse).code == "queue"  # 0.6 s of backlog, as much slack, 0.9 s of its own
    only(fleet.arrive(3, 700), StartPrefill)


def test_a_first_token_far_from_its_limit_or_after_a_retry_says_nothing_of_slack() -> None:
    pool = Driver("pd").pool
    for price_s, attempts in ((0.9, 0), (1.5, 1), (0.0, 0)):
        request = Request(1, Accounts()["default"].shares[0], "", 1000, 10)
        request.ttft_s, request.price_s, request.attempts = 2.0, price_s, attempts
        keep_slack(pool, request, 5.0)
    assert pool.slack_s == 0.0
