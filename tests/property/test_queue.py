"""The fair queue under random histories: nothing is lost, nobody starves, shares keep to the weights."""

from hypothesis import given, settings
from hypothesis import strategies as st

from narwhal.control.queue import LOWER_SHARE, FairQueue
from narwhal.control.state import Request
from narwhal.control.tenants import IDLE_S, Account
from narwhal.fleet.model import TenantLimits
from tests.control.driving import check_queue

WEIGHTS = (1.0, 3.0, 0.5)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["push", "push", "take", "remove", "front", "serve"]),
        st.integers(0, 2),
        st.sampled_from(["interactive", "batch"]),
        st.integers(1, 500),
    ),
    max_size=200,
)


def accounts() -> list[Account]:
    return [Account(TenantLimits(name=f"t{n}", weight=weight)) for n, weight in enumerate(WEIGHTS)]


def request(number: int, account: Account, priority: str, tokens: int) -> Request:
    made = Request(number, account.share(priority), "", tokens, 10)  # type: ignore[arg-type]
    made.cost_s = tokens / 1000
    made.arrived_t = float(number)
    return made


@settings(max_examples=150, deadline=None)
@given(steps=STEPS)
def test_sums_are_exact_and_something_is_next_whenever_something_waits(steps: list[tuple[str, int, str, int]]) -> None:
    queue, tenants = FairQueue(), accounts()
    waiting: dict[int, Request] = {}
    for number, (what, tenant, priority, tokens) in enumerate(steps):
        if what in ("push", "front"):
            waiting[number] = request(number, tenants[tenant], priority, tokens)
            queue.push(waiting[number], front=what == "front")
        elif what == "serve":
            tenants[tenant].share(priority).charge(tokens)  # type: ignore[arg-type]
        elif what == "take" and (head := queue.head()) is not None:
            queue.take(head)
            head.share.charge(head.prompt_tokens)
            del waiting[head.id]
        elif what == "remove" and waiting:
            gone = waiting.pop(sorted(waiting)[tokens % len(waiting)])
            assert queue.remove(gone)
            assert not queue.remove(gone)
        check_queue(queue)
        assert {each.id for each in queue} == set(waiting)
        assert (queue.head() is None) == (not waiting)
        for account in tenants:
            for share in account.shares:
                ahead = queue.ahead(share)
                assert -1e-9 <= ahead.cost_s <= queue.cost_s + 1e-9
                assert -1e-9 <= ahead.requests <= len(queue) + 1e-9
        oldest = queue.oldest()
        assert (oldest is None) == (not waiting)


@settings(max_examples=100, deadline=None)
@given(steps=STEPS)
def test_requests_of_one_share_keep_their_order(steps: list[tuple[str, int, str, int]]) -> None:
    queue, tenants = FairQueue(), accounts()
    for number, (_, tenant, priority, tokens) in enumerate(steps):
        queue.push(request(number, tenants[tenant], priority, tokens))
    last: dict[int, int] = {}
    while (head := queue.head()) is not None:
        queue.take(head)
        head.share.charge(head.prompt_tokens)
        assert last.get(id(head.share), -1) < head.id
        last[id(head.share)] = head.id


@settings(max_examples=50, deadline=None)
@given(sizes=st.lists(st.integers(1, 300), min_size=60, max_size=60))
def test_backlogged_tenants_are_served_by_their_weights_within_one_request(sizes: list[int]) -> None:
    """Start-time fair queueing: what two backlogged flows got over their weights differs by a request each at most."""
    queue, tenants = FairQueue(), accounts()[:2]
    served = [0, 0]
    number = 0
    for account in tenants * 2:
        queue.push(request(number, account, "interactive", sizes[number]))
        number += 1
    while number < len(sizes):
        head = queue.head()
        assert head is not None
        queue.take(head)
        head.share.charge(head.prompt_tokens)
        tenant = tenants.index(head.share.account)
        served[tenant] += head.prompt_tokens
        queue.push(request(number, tenants[tenant], "interactive", sizes[number]))
        number += 1
        gap = abs(served[0] / WEIGHTS[0] - served[1] / WEIGHTS[1])
        assert gap <= max(sizes) / WEIGHTS[0] + max(sizes) / WEIGHTS[1]


@settings(max_examples=50, deadline=None)
@given(sizes=st.lists(st.integers(1, 300), min_size=80, max_size=80))
def test_the_lower_class_gets_its_part_and_no_more(sizes: list[int]) -> None:
    queue, (tenant, *_) = FairQueue(), accounts()
    seconds = {"interactive": 0.0, "batch": 0.0}
    for number, tokens in enumerate(sizes):
        queue.push(request(number, tenant, "batch" if number % 2 else "interactive", tokens))
    while queue._classes[0].count and queue._classes[1].count:
        head = queue.head()
        assert head is not None
        queue.take(head)
        seconds["batch" if head.share.rank else "interactive"] += head.cost_s
        owed = seconds["interactive"] * LOWER_SHARE / (1 - LOWER_SHARE)
        assert owed - max(sizes) / 1000 * 2 <= seconds["batch"] <= owed + 1e-9


def test_a_tenant_that_was_away_saves_up_no_turns() -> None:
    queue, (first, second, _) = FairQueue(), accounts()
    for number in range(50):
        queue.push(request(number, first, "interactive", 100))
        queue.take(queue.head())  # type: ignore[arg-type]
        first.share(None).charge(100)
    for number in range(100, 110):
        queue.push(request(number, first, "interactive", 100))
        queue.push(request(number + 100, second, "interactive", 100))
    order = []
    for _ in range(12):
        head = queue.head()
        assert head is not None
        queue.take(head)
        head.share.charge(100)
        order.append(head.share.account.name)
    assert 2 <= order.count("t0") <= 4  # weights 1 and 3, from now on


def test_a_tenant_whose_requests_were_refused_keeps_what_it_is_behind() -> None:
    queue, (first, second, _) = FairQueue(), accounts()
    for number in range(30):
        queue.pass_by(request(number, first, "interactive", 100))
        first.share(None).charge(100)
    second.share(None).turned_away(125.0)
    for number in range(30, 60):
        queue.push(request(number, first, "interactive", 100))
        queue.push(request(number + 100, second, "interactive", 100))
    for _ in range(30):
        head = queue.head()
        assert head is not None
        queue.take(head)
        head.share.charge(100)
        assert head.share.account is second, "its 30 at weight 3 count as 10 of the other's, which had 30"


def test_a_tenant_that_was_refused_long_ago_is_idle() -> None:
    queue, (first, second, _) = FairQueue(), accounts()
    second.share(None).turned_away(0.0)
    for number in range(30):
        queue.pass_by(request(number, first, "interactive", 100))
        first.share(None).charge(100)
    assert second.share(None).served == 0
    queue.pass_by(request(round(IDLE_S) + 1, second, "interactive", 100))
    assert second.share(None).served == first.share(None).served


def test_void_entries_of_the_heap_are_bounded() -> None:
    queue, (first, second, _) = FairQueue(), accounts()
    queue.push(request(0, first, "interactive", 1))
    for number in range(1, 2000):
        waiting = request(number, second, "batch", 1)
        queue.push(waiting)
        queue.remove(waiting)
    assert len(queue._classes[1]._heap) < 100
