"""Which requests an engine that fails takes along. Engines fail rarely: only here are all looked through."""

from narwhal.control import drains
from narwhal.control.events import DeadlinePassed, Leg, LegFailed
from narwhal.control.standing import last_of_role
from narwhal.control.state import Phase, Pool, Request, Settings


def needs(pool: Pool, engine: str) -> bool:
    """Whether a request still runs on an engine, or on KV that it keeps. Looks through all once it serves none."""
    found = pool.engines.get(engine)
    if found is not None and (found.prefills or found.streams):
        return True
    return any(request.serving == engine or _reads_from(request, engine) for request in pool.requests.values())


def all_failed(pool: Pool, request: Request, *, splits: bool) -> bool:
    """Whether every engine has failed a request that may serve it, now or once a question about it is answered."""
    any_role = request.whole or not splits
    live = [
        engine
        for engine in pool.engines.values()
        if engine.live and (any_role or engine.role == "prefill" or engine.id in pool.lone)
    ]
    return all(engine.id in request.excluded for engine in live)


def lost(pool: Pool, engine: str, *, gone: bool) -> list[Request]:
    """What is to be sent on from an engine that was ejected or is `gone` from the fleet.

    Streams that have begun go on elsewhere if they can. Others end by themselves where the engine broke; with one that
    is gone, they end too.
    """
    return [
        request
        for request in pool.requests.values()
        if (request.serving == engine and (gone or not request.first_token or request.resumable))
        or (request.phase is Phase.SEAT and request.prefill_engine == engine)
    ]


def stalled(pool: Pool, settings: Settings, engine: str) -> list[Request]:
    """What is to be sent on from an engine that a look found silent: nobody waits longer for it than the look did.

    Streams that can go on elsewhere do. So does a leg 2 that may still be reading KV from it: it was sent since the
    engine was last seen well. Its own engine is innocent and may have it again.
    """
    silent = pool.engines.get(engine)
    if silent is None or last_of_role(pool, silent):
        return []
    return [
        request
        for request in pool.requests.values()
        if (not request.first_token or (request.resumable and request.serving == engine))
        and request.attempts < settings.serving.max_retries
        and (
            request.serving == engine
            or (request.phase is Phase.SEAT and request.prefill_engine == engine)
            or (_reads_from(request, engine) and request.entered_t >= silent.vitals.seen_t)
        )
    ]


def parted(pool: Pool, settings: Settings, producer: str, consumer: str) -> list[Request]:
    """What is to be sent on from a pair that was taken out: it may wait for KV that will not come, or comes wrong.

    No deadline ends that wait where the answer comes in one piece.
    """
    return [
        request
        for request in pool.requests.values()
        if request.decode_engine == consumer
        and _reads_from(request, producer)
        and request.attempts < settings.serving.max_retries
    ]


def left_on(pool: Pool, settings: Settings, engine: str, t: float) -> list[Request]:
    """What an engine still has: requests on it, and those for which its KV may still be read."""
    return [
        request
        for request in pool.requests.values()
        if request.serving == engine or drains.may_read(request, engine, t, settings.kv_lease_s)
    ]


def overdue(pool: Pool, event: DeadlinePassed) -> LegFailed | None:
    """The leg that has failed by a deadline; None: no engine was waited for."""
    request = pool.requests.get(event.request)
    if request is None or event.what not in ("prefill", "first_token", "gap") or not request.serving:
        return None
    leg: Leg = "prefill" if event.what == "prefill" else "whole" if request.phase is Phase.WHOLE else "decode"
    if (leg == "prefill") is not (request.phase is Phase.PREFILL):
        return None
    return LegFailed(event.t, request.id, leg, request.serving, "timeout", event.what == "gap")


def _reads_from(request: Request, engine: str) -> bool:
    return request.prefill_engine == engine and request.reads_handoff
