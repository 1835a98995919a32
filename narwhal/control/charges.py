"""What a request is charged to its engines: the only code that changes their sums.

Each charge has one release, and a request carries what it was charged with, so the sums of an engine are exact
whatever happens in between (a property test adds them up again).
"""

from narwhal.control.state import Engine, Pool, Request


def charge_prefill(engine: Engine, request: Request, t: float) -> None:
    """Charge a prompt that is sent to `engine` at `t`, by the engine's own curves."""
    cost_s = engine.prefill_s(request.prompt_tokens)
    engine.prefills[request.id] = (t, cost_s, request.prompt_tokens)
    engine.prefill_backlog_s += cost_s
    engine.prefill_tokens += request.prompt_tokens
    request.prefill_engine = engine.id


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


def charge_decode(engine: Engine, request: Request, t: float) -> None:
    """Charge a stream that is sent to `engine` at `t`: one sequence, and its prompt's KV."""
    request.decode_engine = engine.id
    request.entered_t = t
    request.kv_tokens = request.prompt_tokens
    engine.streams += 1
    engine.kv_tokens += request.kv_tokens


def release_decode(pool: Pool, request: Request) -> None:
    """Take the stream off its engine."""
    engine = pool.engines.get(request.decode_engine)
    if engine is not None and request.decode_engine:
        engine.streams -= 1
        engine.kv_tokens -= request.kv_tokens
    request.decode_engine = ""
    request.kv_tokens = 0


def add_tokens(pool: Pool, request: Request, tokens: int) -> None:
    """Charge tokens that a stream produced."""
    engine = pool.engines.get(request.decode_engine)
    if engine is not None:
        request.kv_tokens += tokens
        engine.kv_tokens += tokens


def enqueue(pool: Pool, request: Request, *, front: bool = False) -> None:
    """Put a request into the queue; a retried one goes to the front, since it has waited already."""
    if front:
        pool.queue.appendleft(request.id)
    else:
        pool.queue.append(request.id)
    pool.queued += 1
    pool.queued_cost_s += request.cost_s


def dequeue(pool: Pool, request: Request) -> None:
    """Count a request out of the queue; its entry is removed by whoever walks the queue."""
    pool.queued -= 1
    pool.queued_cost_s = pool.queued_cost_s - request.cost_s if pool.queued else 0.0
