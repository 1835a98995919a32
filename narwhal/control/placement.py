"""Which engine serves a leg. Lexicographic costs after Arrow (arXiv 2505.11916, section 5.3); ties go to the lower id.

All functions read sums that are kept up to date, so a placement costs O(engines), never O(requests).
"""

from narwhal.control.projection import overflows
from narwhal.control.state import Engine, Pool, Request, Settings


def has_room(engine: Engine, settings: Settings, prompt_tokens: int) -> bool:
    """Whether an engine may be given one more prompt: `serving.prefill_in_flight` prompts, or one batch of tokens."""
    return (
        len(engine.prefills) < settings.serving.prefill_in_flight
        or engine.prefill_tokens + prompt_tokens <= engine.curves.chunk_tokens
    )


def choose_prefill(pool: Pool, settings: Settings, t: float, request: Request) -> Engine | None:
    """The engine for leg 1, or for both legs where it is one of `pool.lone`.

    One to be avoided last, without resident decodes first, the least backlog.
    To be avoided is who may be to blame for the last failure, is on probation, or has no good link to a decode engine.

    None while every eligible engine has its share of prompts.
    """
    best: Engine | None = None
    best_cost = (True, True, float("inf"))
    in_flight, tokens = settings.serving.prefill_in_flight, request.prompt_tokens
    excluded, avoided, shunned, lone = request.excluded, request.avoided, pool.shunned, pool.lone
    for engine in pool.producers:
        if len(engine.prefills) >= in_flight and not has_room(engine, settings, tokens):
            continue
        if engine.id in excluded:
            continue
        if lone and engine.id in lone and not has_seat(engine, tokens, settings.slo.tpot_s):
            continue
        cost = (engine.id == avoided or engine.id in shunned, engine.streams > 0, engine.backlog_s(t))
        if best is None or cost < best_cost:
            best, best_cost = engine, cost
    return best


def choose_decode(pool: Pool, settings: Settings, request: Request, *, full: bool = False) -> Engine | None:
    """The decode engine for leg 2: over a good link first, without resident prefills, then the most room.

    Stays off the producer, whose local cache would answer and leave the handoff's blocks pinned, and inside the
    producer's contract fingerprint. `full` also takes an engine without a free seat: its own queue renews the lease.
    """
    producer = pool.engines.get(request.prefill_engine)
    fingerprint = producer.fingerprint if producer else ""
    tpot_s = settings.slo.tpot_s
    best: Engine | None = None
    best_cost = (True, True, float("inf"))
    own, excluded, tokens = request.prefill_engine, request.excluded, request.prompt_tokens
    shunned = pool.shunned
    if pool.severed or pool.doubtful:
        excluded += tuple(pool.severed.get(own, ()))
        shunned += tuple(pool.doubtful.get(own, ()))
    for engine in pool.decode:
        if engine.id == own or engine.fingerprint != fingerprint or engine.id in excluded:
            continue
        if not full and not has_seat(engine, tokens, tpot_s):
            continue
        cost = (engine.id in shunned, bool(engine.prefills), engine.occupancy(tpot_s))
        if best is None or cost < best_cost:
            best, best_cost = engine, cost
    return best


def has_seat(engine: Engine, prompt_tokens: int, tpot_s: float) -> bool:
    """Whether a stream fits: a sequence, KV for its prompt, and pace under the TPOT target. An empty engine has one."""
    streams = engine.streams + engine.foreign_streams
    if streams == 0:
        return True
    kv_tokens = engine.kv_tokens + engine.foreign_kv_tokens + prompt_tokens
    curves = engine.curves
    if streams + 1 > curves.max_num_seqs or kv_tokens > curves.kv_capacity_tokens:
        return False
    return curves.interval_s(streams + 1, kv_tokens) <= tpot_s or not engine.knows_decode


def has_peer(pool: Pool, producer: Engine, request: Request) -> bool:
    """Whether a decode engine other than its producer can read a request's handoff, now or once it has room."""
    severed = pool.severed.get(producer.id, ())
    return any(
        engine is not producer
        and engine.fingerprint == producer.fingerprint
        and engine.id not in request.excluded
        and engine.id not in severed
        for engine in pool.decode
    )


def choose_whole(pool: Pool, settings: Settings, t: float, request: Request) -> Engine | None:
    """The engine for both phases of a request, of any role: the least of its backlog and its occupancy."""
    best: Engine | None = None
    best_cost = float("inf")
    for engines in (pool.prefill, pool.decode):
        for engine in engines:
            if engine.id in request.excluded or not has_room(engine, settings, request.prompt_tokens):
                continue
            if not has_seat(engine, request.prompt_tokens, settings.slo.tpot_s):
                continue
            cost = max(engine.occupancy(settings.slo.tpot_s), engine.backlog_s(t) / request.ttft_s)
            if best is None or cost < best_cost:
                best, best_cost = engine, cost
    return best


def choose_overflow(pool: Pool, settings: Settings, t: float, request: Request) -> Engine | None:
    """The decode engine that takes a prompt which no prefill engine would answer in time, where the fleet lets it.

    `projection.overflow` is on, and both roles have engines. It then serves both phases: the emptiest one with room,
    if the rule lets it (`projection.overflows`).
    """
    waited_s = max(t - request.arrived_t, 0.0)
    best_s = waited_s + min(e.backlog_s(t) + e.prefill_s(request.prompt_tokens) for e in pool.prefill) + pool.handoff_s
    fits = [
        engine
        for engine in pool.decode
        if engine.id not in request.excluded
        and has_room(engine, settings, request.prompt_tokens)
        and has_seat(engine, request.prompt_tokens, settings.slo.tpot_s)
    ]
    if not fits:
        return None
    engine = min(fits, key=lambda e: e.occupancy(settings.slo.tpot_s))
    own_s = waited_s + engine.backlog_s(t) + engine.prefill_s(request.prompt_tokens)
    return engine if overflows(settings, best_s, request.ttft_s, engine, own_s) else None


def splits(pool: Pool, settings: Settings) -> bool | None:
    """Whether requests go over two legs now.

    True: both roles have an engine. False: one role has none, and the others serve both phases (aggregated: by
    `recovery.degraded`, or because the fleet has a single engine). None: nobody may serve.
    """
    if pool.prefill and pool.decode:
        return True
    if not pool.prefill and not pool.decode:
        return None
    return False if settings.recovery.degraded == "aggregate" or len(pool.engines) == 1 else None


def degraded(pool: Pool, settings: Settings) -> str:
    """What is to be said while one role has no open engine and the other has; empty: nothing."""
    if bool(pool.prefill) == bool(pool.decode) or len(pool.engines) == 1:
        return ""
    role, other = ("decode", "prefill") if pool.prefill else ("prefill", "decode")
    if splits(pool, settings) is None:
        return f"no {role} engine is live: requests are refused (recovery.degraded: refuse)"
    return f"no {role} engine is live: {other} engines serve both phases (recovery.degraded: aggregate)"
