"""Whether a request is let in: its price in seconds to the first token, against its TTFT target."""

from dataclasses import dataclass

from narwhal.control import load
from narwhal.control.demand import Demand
from narwhal.control.placement import splits
from narwhal.control.queue import NOTHING, Ahead
from narwhal.control.standing import settled_s
from narwhal.control.state import Engine, Pool, Request, Settings
from narwhal.control.tenants import Account, Share

NO_CAPACITY = frozenset(["queue", "queue_full", "decode"])
"""Codes of refusals that a fleet with more room would not have given."""
MOST_WAIT_S = 60.0
"""Longest wait that a refusal for want of decode room tells, in seconds."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not let in."""

    code: str
    message: str
    retry_after_s: float
    """Seconds after which it would pass by the present state; 0: a retry does not help."""
    status: int = 429


def price_s(pool: Pool, t: float, request: Request) -> float:
    """Projected seconds from arrival to first token: backlog, own prefill, time already waited, measured handoff.

    The backlog is that of the cheapest engine while it would be served next; where prompts of the queue are served
    first (`FairQueue.ahead`), it is the mean of all that is served before it. So nobody pays for what others queue
    beyond their share. The pool's slack comes on top, at most as much again as the backlog: an idle fleet keeps nothing
    in hand.
    """
    engines = pool.prefill or pool.decode
    if not engines:
        return float("inf")
    ahead = _ahead(pool, request) if pool.queue.count else NOTHING
    if ahead.requests > 0:
        backlog = (ahead.cost_s + sum([engine.backlog_s(t) for engine in engines])) / len(engines)
    else:
        backlog = min([engine.backlog_s(t) for engine in engines])
    waited_s = t - request.arrived_t
    slack_s = pool.slack_s if pool.slack_s < backlog else backlog
    return (waited_s if waited_s > 0.0 else 0.0) + backlog + slack_s + request.cost_s + _handoff_s(pool, request)


def _handoff_s(pool: Pool, request: Request) -> float:
    """The measured handoff; 0 for a request that is the only one, and where engines serve both phases.

    A mean above the target refuses everyone, and nobody would be left to tell that it is over: one at a time may try.
    """
    return pool.handoff_s if pool.prefill and pool.decode and not _alone(pool, request) else 0.0


def refuse(pool: Pool, settings: Settings, demand: Demand, t: float, request: Request) -> Refusal | None:
    """The refusal of a request that arrives, or None to let it in."""
    if not (pool.prefill and pool.decode) and splits(pool, settings) is None:
        return Refusal("no_engine", "no engine can serve this request at the moment", 1.0, 503)
    account = request.share.account
    if account.limited:
        account.refill(t)
        over = _refuse_limits(account, t, request)
        if over is not None:
            return over
    if account.waiting and account.waiting >= int(settings.serving.queue.max_requests * account.portion):
        wait = pool.queue.ahead(request.share).cost_s / max(len(pool.prefill or pool.decode), 1) or 1.0
        return Refusal("queue_full", f"{account.waiting} requests already wait", wait)
    if _open(pool, settings, request):
        return None
    return _refuse_ttft(pool, settings, t, request) or _refuse_decode(pool, settings, demand, t, request)


def foresee(pool: Pool, settings: Settings, t: float, share: Share, least: int, most: int) -> Refusal | None:
    """The refusal that a request meets whatever it says: by its tenant's limits, or since its prompt is too long.

    `least`, `most`: between which its prompt's tokens are. Nothing is counted and nothing changes.
    """
    request = Request(0, share, "", max(least, 1), 1)
    if share.account.limited:
        over = _refuse_limits(share.account, t, request)
        if over is not None:
            return over
    engine = load.reference(pool)
    if engine is None or _open(pool, settings, request):
        return None
    request.cost_s, request.ttft_s = engine.prefill_s(request.prompt_tokens), settings.slo.ttft_for(most)
    return _refuse_prompt(settings, request)


def may_hold(
    pool: Pool, settings: Settings, demand: Demand, t: float, request: Request, refusal: Refusal | None
) -> bool:
    """Whether a request is to wait for room on decode engines: its target can still be met when the room comes.

    Also where there is room, but others were there before it. Without tenants there are no shares to keep, and a
    request is refused at once.
    """
    if not settings.tenants:
        return False
    if refusal is None:
        return bool(pool.held) and pool.held.ahead(request.share).requests > 0
    if refusal.code != "decode":
        return False
    limit = request.ttft_s * (1 + settings.serving.margin)
    leaving = _leaving(pool, settings, demand, t)
    before = pool.held.ahead(request.share).requests * demand.mean_occupancy()
    wait_s = refusal.retry_after_s + before / leaving if leaving > 0 else float("inf")
    return price_s(pool, t, request) + wait_s <= limit


def latest_t(pool: Pool, settings: Settings, request: Request) -> float:
    """When the prefill of a request has to begin at the latest for its target to be met."""
    return request.arrived_t + request.ttft_s * (1 + settings.serving.margin) - request.cost_s - pool.handoff_s


def refuse_held(pool: Pool, settings: Settings, demand: Demand, t: float, request: Request) -> Refusal | None:
    """The refusal of a held request that wakes; `decode`: it has to wait on."""
    if splits(pool, settings) is None:
        return Refusal("decode", "no engine can serve this request at the moment", 1.0)
    if _open(pool, settings, request):
        return None
    return refuse_late(pool, settings, t, request) or _refuse_decode(pool, settings, demand, t, request)


def too_late(pool: Pool, settings: Settings, demand: Demand, t: float, request: Request) -> Refusal:
    """The refusal of a held request whose time is over: a retry passes when a place comes for it."""
    before = (pool.held.ahead(request.share).requests + 1) * demand.mean_occupancy()
    return Refusal("decode", "decode engines had no room in time", _room_s(pool, settings, demand, t, before))


def _room_s(pool: Pool, settings: Settings, demand: Demand, t: float, occupancy: float) -> float:
    """Seconds until engines that decode have so much more room, as they become empty now.

    Where a look at one failed, or nothing becomes empty, it may hang: it is out or back before long.
    """
    leaving = _leaving(pool, settings, demand, t)
    hung = [engine for engine in _decoding(pool) if engine.vitals.misses or leaving <= 0]
    most_s = min(MOST_WAIT_S, max([settled_s(settings, engine) for engine in hung], default=MOST_WAIT_S))
    return min(max(occupancy / leaving, 0.1), most_s) if leaving > 0 else most_s


def _decoding(pool: Pool) -> list[Engine]:
    """The engines that streams go to: those of prefill too, where they serve both phases."""
    return pool.decode or pool.prefill


def _leaving(pool: Pool, settings: Settings, demand: Demand, t: float) -> float:
    """Occupancy of engines that decode that ends each second."""
    now = sum(engine.occupancy(settings.slo.tpot_s) for engine in _decoding(pool))
    return now * (1.0 - demand.survival(t)) / 5.0


def refuse_late(pool: Pool, settings: Settings, t: float, request: Request) -> Refusal | None:
    """The refusal of a queued request that wakes, when what is left is too little for its own prefill."""
    limit = request.ttft_s * (1 + settings.serving.margin)
    price = t - request.arrived_t + request.cost_s + _handoff_s(pool, request)
    if price <= limit or request.attempts or request.resumed or _open(pool, settings, request):
        return None
    return Refusal(
        "queue",
        f"waited too long: {price:.2f} s to the first token, the limit is {limit:.2f} s",
        price - limit,
    )


def _refuse_limits(account: Account, t: float, request: Request) -> Refusal | None:
    """The refusal of a request that is over its tenant's own limits."""
    wait = account.concurrency_wait_s()
    if wait is not None:
        text = f"tenant {account.name} has {account.open} requests open, its limit is {account.max_concurrency}"
        return Refusal("tenant_concurrency", text, wait)
    wait = account.tokens_wait_s(t, account.expected_tokens(request.prompt_tokens, request.max_tokens))
    if wait is None:
        return None
    text = f"tenant {account.name} has used its {account.tokens_per_minute} tokens per minute"
    return Refusal("tenant_tokens", text, wait)


def _ahead(pool: Pool, request: Request) -> Ahead:
    """What of the queue is served before a request that comes now."""
    return pool.queue.ahead(request.share) if pool.queue.count else NOTHING


def _open(pool: Pool, settings: Settings, request: Request) -> bool:
    """Whether nobody is refused for its price: by the settings, or while the curves are not to be trusted.

    Curves that were learned may refuse everyone, and nobody would be left to correct them: one at a time may try.
    """
    return settings.serving.admission == "open" or not pool.trusted or (bool(pool.learned) and _alone(pool, request))


def _alone(pool: Pool, request: Request) -> bool:
    """Whether there is no other request."""
    requests = pool.requests
    return not requests or (len(requests) == 1 and request.id in requests)


def _refuse_prompt(settings: Settings, request: Request) -> Refusal | None:
    limit = request.ttft_s * (1 + settings.serving.margin)
    if request.cost_s <= limit:
        return None
    text = f"a prompt of {request.prompt_tokens} tokens takes {request.cost_s:.2f} s, the limit is {limit:.2f} s"
    return Refusal("prompt", text, 0.0)


def _refuse_ttft(pool: Pool, settings: Settings, t: float, request: Request) -> Refusal | None:
    limit = request.ttft_s * (1 + settings.serving.margin)
    if request.cost_s > limit:
        return _refuse_prompt(settings, request)
    price = request.price_s = price_s(pool, t, request)
    if price <= limit:
        return None
    return Refusal("queue", f"the first token would take {price:.2f} s, the limit is {limit:.2f} s", price - limit)


def _refuse_decode(pool: Pool, settings: Settings, demand: Demand, t: float, request: Request) -> Refusal | None:
    """Refuse when no decode seat can be expected by the time prefill ends.

    What is resident now shrinks by the measured survival over 5 s; what is queued or in prefill comes on top with
    the mean share of recent streams. An engine that serves both phases counts a stream as resident from its prompt on.
    """
    engines = _decoding(pool)
    if not engines:
        return None
    tpot_s = settings.slo.tpot_s
    now = sum([engine.occupancy(tpot_s) for engine in engines])
    if now < 0.5 * len(engines):  # far from full, whatever is on its way
        return None
    horizon_s = price_s(pool, t, request)
    survival = float(demand.survival(t) ** (horizon_s / 5.0))
    in_prefill = sum(len(engine.prefills) for engine in pool.prefill) if engines is pool.decode else 0
    coming = (_ahead(pool, request).requests + len(pool.seats) + in_prefill) * demand.mean_occupancy()
    expected = now * survival + coming
    if expected < len(engines):
        return None
    wait_s = _room_s(pool, settings, demand, t, expected - len(engines))
    which = "decode engines" if pool.prefill and pool.decode else "engines that serve both phases"
    return Refusal("decode", f"{which} will be full: {expected:.2f} of {len(engines)}", wait_s)
