"""What a request is charged to its engines: the only code that changes their sums.

Each charge has one release, and a request carries what it was charged with, so the sums of an engine are exact
whatever happens in between (a property test adds them up again).
"""

from bisect import bisect_left, insort

from narwhal.control.link import Link
from narwhal.control.state import Engine, Phase, Pool, Request


def charge_prefill(engine: Engine, request: Request, t: float) -> None:
    """Charge a prompt that is sent to `engine` at `t`, by the engine's own curves, and its tenant with its tokens."""
    cost_s = engine.prefill_s(request.prompt_tokens)
    engine.prefills[request.id] = (t, cost_s, request.prompt_tokens)
    engine.prefill_backlog_s += cost_s
    engine.prefill_tokens += request.prompt_tokens
    request.prefill_engine = engine.id
    request.share.charge(request.prompt_tokens)


def release_prefill(pool: Pool, request: Request) -> tuple[float, float] | None:
    """Take the prompt off its engine. Returns (sent_t, cost_s) of the charge, None when there was none."""
    engine = pool.engines.get(request.prefill_engine)
    entry = engine.prefills.pop(request.id, None) if engine else None
    if engine is None or entry is None:
        return None
    sent_t, cost_s, tokens = entry
    engine.prefill_tokens -= tokens
    engine.prefill_backlog_s = engine.prefill_backlog_s - cost_s if engine.prefills else 0.0
    return sent_t, cost_s


def drop_prefill(pool: Pool, request: Request) -> None:
    """Take a prompt off its engine that will have no answer: what the engine did meanwhile is not known."""
    engine = pool.engines.get(request.prefill_engine)
    if release_prefill(pool, request) is not None and engine is not None and engine.meter is not None:
        engine.meter.spoiled = bool(engine.prefills)


def charge_decode(engine: Engine, request: Request, t: float) -> None:
    """Charge a stream that is sent to `engine` at `t`: one sequence, and its prompt's KV."""
    begin_intervals(engine, request, t)
    request.decode_engine = engine.id
    request.entered_t = t
    request.kv_tokens = request.prompt_tokens
    engine.streams += 1
    engine.kv_tokens += request.kv_tokens


def begin_intervals(engine: Engine, request: Request, t: float) -> None:
    """Note where a stream's intervals begin: at its first token, or before it where that is not told."""
    meter = engine.meter
    if meter is not None:
        meter.watch(t, engine.charged_streams, engine.charged_kv_tokens)
        tokens = max(request.produced, int(request.first_token))
        request.metered = (t, meter.stream_s, meter.kv_token_s, tokens)


def release_decode(pool: Pool, request: Request) -> None:
    """Take the stream off its engine."""
    engine = pool.engines.get(request.decode_engine) if request.decode_engine else None
    if engine is not None:
        engine.streams -= 1
        engine.kv_tokens -= request.kv_tokens
    request.decode_engine = ""
    request.kv_tokens = 0


def count_handoff(engine: Engine, request: Request, seconds: float | None) -> None:
    """Count a handoff on its pair; `seconds`: to its first token, where that was seen."""
    link = engine.links.get(request.prefill_engine)
    if link is None:
        link = engine.links[request.prefill_engine] = Link()
    link.handoffs += 1
    link.tokens += request.prompt_tokens
    if seconds is not None:
        link.timed += 1
        link.seconds += seconds


def discharge(engine: Engine) -> None:
    """Whatever an engine was charged with is gone, such as with the router that sent it."""
    engine.prefills.clear()
    engine.prefill_backlog_s, engine.prefill_tokens = 0.0, 0
    engine.streams = engine.kv_tokens = 0
    if engine.meter is not None:
        engine.meter.begin_anew()


def abandon(producer: Engine, request: Request, lease_s: float) -> None:
    """Note a handoff that will not be read; those are forgotten whose lease had ended when it was made."""
    times, made_t = producer.abandoned_times, request.prefilled_t
    del times[: bisect_left(times, made_t - lease_s)]
    insort(times, made_t)


def add_tokens(pool: Pool, request: Request, tokens: int, t: float) -> None:
    """Charge tokens that a stream produced by `t`, to its engine and its tenant."""
    request.produced += tokens
    request.share.charge(tokens)
    engine = pool.engines.get(request.decode_engine)
    if engine is not None:
        request.kv_tokens += tokens
        engine.kv_tokens += tokens
        engine.heard_t = t


def correct_tokens(request: Request, completion_tokens: int) -> None:
    """Put right what a tenant was charged for a completion whose length is known now."""
    request.share.charge(completion_tokens - request.produced)
    request.produced = completion_tokens


def enqueue(pool: Pool, request: Request, *, front: bool = False) -> None:
    """Put a request into the queue; a retried one goes before its tenant's others, since it has waited already."""
    pool.queue.push(request, front=front)
    request.share.account.waiting += 1


def dequeue(pool: Pool, request: Request, *, served: bool) -> None:
    """Take a request out of the queue: because an engine has it now (`served`), or because it is over."""
    if request.phase is Phase.NEW:  # it never was in
        pool.queue.pass_by(request)
        return
    if served:
        pool.queue.take(request)
    else:
        pool.queue.remove(request)
    request.share.account.waiting -= 1


def hold(pool: Pool, request: Request) -> None:
    """Let a request wait for room on decode engines."""
    pool.held.push(request)
    request.share.account.waiting += 1


def release_held(pool: Pool, request: Request, *, served: bool) -> None:
    """End that wait: because there is room (`served`), or because the request is over. It is new again."""
    if served:
        pool.held.take(request)
    else:
        pool.held.remove(request)
    request.share.account.waiting -= 1
    request.phase = Phase.NEW


def settle(request: Request) -> None:
    """Give its tenant back what a request that is over did not use."""
    began = request.prefill_engine or request.decode_engine or request.attempts
    request.share.account.end(
        request.expected_tokens, request.prompt_tokens - request.delivered + request.produced if began else 0
    )
