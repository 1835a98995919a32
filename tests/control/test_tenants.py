"""Tenants in control: limits, prices under fair queueing, classes, what is charged and given back."""

from typing import Any

from narwhal.control.commands import AnyCommand, Refuse, StartPrefill, Wait
from narwhal.control.events import FirstToken, RequestCancelled, RequestFinished, SettingsChanged, TokensObserved
from narwhal.fleet.model import TenantLimits
from tests.control.driving import Driver, check_sums, only

PREDICTIVE = {"admission": "predictive", "margin": 0.1}


def driver(roles: str = "pd", *tenants: dict[str, Any], **parts: Any) -> Driver:
    return Driver(roles, tenants=tuple(TenantLimits.model_validate(tenant) for tenant in tenants), **parts)


def refused(commands: list[AnyCommand]) -> Refuse:
    return only(commands, Refuse)


def test_one_more_than_max_concurrency_is_refused_until_one_ends() -> None:
    fleet = driver("pd", {"name": "a", "max_concurrency": 2})
    fleet.arrive(1, tenant="a")
    fleet.arrive(2, tenant="a")
    refusal = refused(fleet.arrive(3, tenant="a"))
    assert (refusal.status, refusal.code) == (429, "tenant_concurrency")
    assert refusal.retry_after_s > 0
    assert not [c for c in fleet.arrive(4, tenant="b") if isinstance(c, Refuse)]
    fleet.feed(RequestCancelled(1.0, 1))
    assert not [c for c in fleet.arrive(5, tenant="a") if isinstance(c, Refuse)]
    check_sums(fleet.control)


def test_retry_after_of_concurrency_is_when_the_next_is_expected_to_end() -> None:
    fleet = driver("pd", {"name": "a", "max_concurrency": 2})
    fleet.arrive(1, tenant="a")
    fleet.prefilled(1, 1.0)
    fleet.feed(RequestFinished(6.0, 1, 10))
    fleet.arrive(2, tenant="a")
    fleet.arrive(3, tenant="a")
    assert refused(fleet.arrive(4, tenant="a")).retry_after_s == 3.0  # two of them, six seconds each


def test_tokens_per_minute_are_taken_as_expected_and_put_right_at_the_end() -> None:
    fleet = driver("pd", {"name": "a", "tokens_per_minute": 600})
    account = fleet.pool.accounts["a"]
    fleet.arrive(1, 100, tenant="a")  # expected: its prompt and max_tokens, 50
    assert account.level == 450
    fleet.prefilled(1)
    fleet.feed(RequestFinished(0.0, 1, 400))
    assert account.level == 100
    refusal = refused(fleet.arrive(2, 100, tenant="a"))
    assert (refusal.status, refusal.code) == (429, "tenant_tokens")
    assert abs(refusal.retry_after_s - 5.0) < 1e-9  # 50 tokens are missing, 10 come each second
    assert [c for c in fleet.arrive(3, 100, t=5.1, tenant="a") if isinstance(c, StartPrefill)]


def test_a_request_larger_than_the_bucket_passes_when_it_is_full() -> None:
    fleet = driver("pd", {"name": "a", "tokens_per_minute": 100})
    only(fleet.arrive(1, 1000, tenant="a"), StartPrefill)
    assert refused(fleet.arrive(2, 10, tenant="a")).code == "tenant_tokens"


def test_what_was_never_sent_costs_nothing() -> None:
    fleet = driver("pd", {"name": "a", "tokens_per_minute": 100_000})
    for number in range(4):
        fleet.arrive(number, 1000, tenant="a")
    account = fleet.pool.accounts["a"]
    before = account.level
    fleet.feed(RequestCancelled(0.0, 3))
    assert account.level == before + 1050
    assert account.tokens == 0


def test_a_greedy_tenant_does_not_raise_the_price_of_another() -> None:
    fleet = driver("pd", {"name": "greedy"}, {"name": "light"}, serving=PREDICTIVE)
    number = 0
    while not [c for c in fleet.arrive(number, 300, tenant="greedy") if isinstance(c, Refuse)]:
        number += 1
    assert number >= 3
    only(fleet.arrive(100, 300, tenant="light"), Wait)
    started = [only(fleet.prefilled(number, 0.3), StartPrefill).request for number in (0, 1)]
    assert 100 in started


def test_without_tenants_everything_queued_is_ahead() -> None:
    fleet = driver("pd", serving=PREDICTIVE)
    number = 0
    while not [c for c in fleet.arrive(number, 300) if isinstance(c, Refuse)]:
        number += 1
    assert refused(fleet.arrive(100, 300, tenant="default")).code == "queue"


def test_a_full_queue_of_one_tenant_leaves_places_to_others() -> None:
    serving = {"admission": "open", "queue": {"max_requests": 8}}
    fleet = driver("pd", {"name": "greedy", "weight": 3}, {"name": "light"}, serving=serving)
    outcomes = [bool([c for c in fleet.arrive(n, 3000, tenant="greedy") if isinstance(c, Refuse)]) for n in range(12)]
    assert outcomes.count(False) == 2 + 6  # two on the engine, six places of eight
    assert refused(fleet.arrive(50, 10, tenant="greedy")).code == "queue_full"
    assert not [c for c in fleet.arrive(100, 10, tenant="light") if isinstance(c, Refuse)]


def test_interactive_prompts_go_first_and_batch_ones_do_not_starve() -> None:
    fleet = driver("pd", {"name": "a"}, {"name": "b", "priority": "batch"})
    for number in range(40):
        fleet.arrive(number, 1000, tenant="b" if number < 10 else "a")
    order: list[str] = []
    while fleet.pool.queue:
        running = next(iter(fleet.engine("e0").prefills))
        started = [command.request for command in fleet.prefilled(running) if isinstance(command, StartPrefill)]
        order += [fleet.pool.requests[number].share.account.name for number in started]
        fleet.feed(RequestFinished(fleet.t, running, 1))
    assert order[:9] == ["a"] * 9
    assert "b" in order[9:11]
    assert order[:30].count("b") in (2, 3)


def test_a_request_may_lower_its_priority_but_not_raise_it() -> None:
    fleet = driver("pd", {"name": "a"}, {"name": "b", "priority": "batch"})
    fleet.arrive(1, tenant="a", priority="batch")
    fleet.arrive(2, tenant="b", priority="interactive")
    assert [fleet.pool.requests[number].share.rank for number in (1, 2)] == [1, 1]


def test_a_tenant_is_charged_for_its_prompt_when_sent_and_for_tokens_as_they_come() -> None:
    fleet = driver("pd", {"name": "a", "weight": 2})
    share = fleet.pool.accounts["a"].share(None)
    fleet.arrive(1, 100, tenant="a")
    assert share.served == 50
    fleet.prefilled(1)
    fleet.feed(FirstToken(1.0, 1))
    fleet.feed(TokensObserved(2.0, (1,), (30,)))
    assert share.served == 65
    fleet.feed(RequestFinished(3.0, 1, 20))
    assert share.served == 60
    assert fleet.pool.accounts["a"].tokens == 120


def test_a_reload_changes_limits_and_keeps_what_is_open() -> None:
    fleet = driver("pd", {"name": "a", "max_concurrency": 1}, {"name": "b"})
    fleet.arrive(1, tenant="a")
    for number in range(2, 6):
        fleet.arrive(number, 2000, tenant="b")
    changed = fleet.control.settings.copy()
    changed.tenants = (TenantLimits(name="a", max_concurrency=2, weight=5), TenantLimits(name="c"))
    fleet.feed(SettingsChanged(1.0, changed.document()))
    check_sums(fleet.control)
    assert not [c for c in fleet.arrive(10, tenant="a") if isinstance(c, Refuse)]
    assert refused(fleet.arrive(11, tenant="a")).code == "tenant_concurrency"
    for number in range(1, 6):
        fleet.feed(RequestCancelled(2.0, number))
    check_sums(fleet.control)
    fleet.feed(SettingsChanged(3.0, changed.document()))
    assert {account.name for account in fleet.pool.accounts} == {"a", "c"}
