"""Requests of tenants that wait for room on decode engines: who waits, whose turn it is, and how the wait ends."""

from typing import Any

import pytest

from narwhal.control.commands import Refuse, StartPrefill, Wait
from narwhal.control.events import DeadlinePassed, FirstToken, RequestCancelled, RequestFinished
from narwhal.fleet.model import TenantLimits
from tests.control.driving import CURVES, Driver, check_sums, only

SEATS = CURVES.max_num_seqs
TENANTS = ({"name": "a", "weight": 3}, {"name": "b"})


class Full(Driver):
    """One engine of each role; the decode engine is full, and most of its streams end within five seconds."""

    def __init__(self, *tenants: dict[str, Any], leaving: bool = True, **serving: Any) -> None:
        limits = tuple(TenantLimits.model_validate(tenant) for tenant in tenants)
        super().__init__("pd", tenants=limits, serving={"admission": "predictive", "margin": 0.1, **serving})
        self.number = 0
        self.streams: list[int] = []
        for _ in range(SEATS):
            self.stream(0.0)
        for _ in range(SEATS - 1 if leaving else 0):
            self.finish(7.0)
            self.stream(7.0)
        self.arrive(99, 20, t=7.4, tenant="a")  # the first stream that will end leaves its seat to this one

    def stream(self, t: float) -> None:
        number = self.number = self.number + 1
        self.arrive(number, 20, t=t, tenant="a")
        self.prefilled(number, t)
        self.feed(FirstToken(t, number))
        self.streams.append(number)

    def finish(self, t: float) -> list[Any]:
        return self.feed(RequestFinished(t, self.streams.pop(0), 50))

    def ask(self, number: int, tenant: str, t: float = 7.5) -> list[Any]:
        commands = self.arrive(number, 20, t=t, tenant=tenant)
        check_sums(self.control)
        return commands


def started(commands: list[Any]) -> list[int]:
    return [command.request for command in commands if isinstance(command, StartPrefill)]


def test_a_request_waits_for_room_and_goes_when_it_comes() -> None:
    fleet = Full(*TENANTS)
    wait = only(fleet.ask(100, "a"), Wait)
    assert (wait.request, wait.what) == (100, "queue")
    assert 7.5 < wait.until <= 7.5 + 2.0 * 1.1  # the TTFT target and its margin
    assert [request.id for request in fleet.pool.held] == [100]
    assert fleet.pool.accounts["a"].waiting == 1
    assert started(fleet.finish(8.0)) == [100]
    assert not fleet.pool.held
    assert fleet.pool.accounts["a"].waiting == 0
    check_sums(fleet.control)


def test_without_tenants_nothing_is_held() -> None:
    fleet = Full()
    refusal = only(fleet.ask(100, "default"), Refuse)
    assert (refusal.status, refusal.code) == (429, "decode")


def test_nothing_is_held_while_no_room_is_expected_in_time() -> None:
    fleet = Full(*TENANTS, leaving=False)
    assert only(fleet.ask(100, "a"), Refuse).code == "decode"
    assert not fleet.pool.held


def test_whose_turn_it_is_follows_what_tenants_were_served() -> None:
    fleet = Full(*TENANTS)
    shares = {name: fleet.pool.accounts[name].share(None) for name in "ab"}
    fleet.ask(100, "a")
    fleet.ask(101, "b")
    shares["b"].served = shares["a"].served - 1.0
    assert started(fleet.finish(8.0))[0] == 101


def test_one_that_finds_room_waits_for_those_that_were_there_before() -> None:
    fleet = Full(*TENANTS)
    fleet.ask(100, "a")
    fleet.streams.pop(0)
    fleet.pool.engines["e1"].streams -= 4  # room that no event has told of
    only(fleet.arrive(101, 20, t=7.6, tenant="a"), Wait)
    assert [request.id for request in fleet.pool.held] == [100, 101]


def test_a_held_request_whose_time_is_over_is_refused_with_an_honest_retry() -> None:
    fleet = Full(*TENANTS)
    wait = only(fleet.ask(100, "a"), Wait)
    refusal = only(fleet.feed(DeadlinePassed(wait.until, 100, "queue")), Refuse)
    assert (refusal.status, refusal.code) == (429, "decode")
    assert refusal.retry_after_s > 0
    assert fleet.pool.accounts["a"].share(None).turned_away_t == 7.5
    assert 100 not in fleet.pool.requests
    check_sums(fleet.control)


def test_a_held_request_whose_client_leaves_is_forgotten() -> None:
    fleet = Full(*TENANTS)
    fleet.ask(100, "a")
    fleet.feed(RequestCancelled(7.6, 100))
    assert not fleet.pool.held
    assert started(fleet.finish(8.0)) == []
    check_sums(fleet.control)


def test_held_requests_take_places_in_the_queue() -> None:
    fleet = Full(*TENANTS, queue={"max_requests": 4})
    codes = [[c.code for c in fleet.ask(number, "b") if isinstance(c, Refuse)] for number in (100, 101)]
    assert codes == [[], ["queue_full"]], "one of four places is b's"


@pytest.mark.parametrize("code", ["decode", "queue_full", "tenant_concurrency"])
def test_a_refusal_for_want_of_room_is_remembered_and_one_by_a_tenants_own_limit_is_not(code: str) -> None:
    limit = {"max_concurrency": 1} if code == "tenant_concurrency" else {}
    fleet = Full({"name": "a"}, {"name": "b", **limit}, leaving=code != "decode", queue={"max_requests": 2})
    refusals = [c.code for number in (100, 101) for c in fleet.ask(number, "b") if isinstance(c, Refuse)]
    assert refusals[-1] == code
    assert (fleet.pool.accounts["b"].share(None).turned_away_t == 7.5) == (code != "tenant_concurrency")
