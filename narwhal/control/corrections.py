"""Live corrections of an engine's curves, from what it really served: bounded, slowly forgotten.

An engine with a profile keeps its curves, with one factor on prefill. One without has those that were learned of its
kind (`learning`). And the handoff: a moving mean of the time from sending leg 2 to its first
token, which admission charges.
"""

from narwhal.control.charges import begin_intervals, count_handoff
from narwhal.control.learning import Learned
from narwhal.control.meter import LEAST_TOKENS
from narwhal.control.state import Engine, Phase, Pool, Request

LEAST, MOST = 0.5, 2.0
"""Bounds of a correction (`3-control.md`, Curves)."""
WEIGHT = 0.1
"""Weight of one sample."""
KEPT = 0.9
"""Share of first tokens that are to come within their price (`6-measure.md`: of what is let in, nine of ten)."""
STEP = 0.05
"""By how much a first token moves the slack, of its TTFT target."""


def correct_prefill(pool: Pool, engine: Engine, t: float, sent_t: float, prompt_tokens: int, own: int = 0) -> None:
    """Correct an engine's prefill curve with a prompt that was sent at `sent_t` and answered at `t`.

    Service began when the prompt was sent or when the one before it left, whichever is later. A prompt that shared
    the engine with decodes says nothing about the curve and is left out. `own`: streams that are the prompt itself.
    """
    began_t = sent_t if sent_t > engine.last_prefill_t else engine.last_prefill_t
    engine.last_prefill_t = t
    meter = engine.meter
    if meter is not None:
        meter.spoiled |= engine.streams > own
        if meter.prefilled(t, began_t, prompt_tokens, len(engine.prefills)):
            _spread(pool, meter.learned)
        return
    predicted_s = engine.curves.prefill_s(prompt_tokens)
    if engine.streams > own or t <= began_t or predicted_s <= 0:
        return
    ratio = min(max((t - began_t) / predicted_s, LEAST), MOST)
    engine.prefill_scale += WEIGHT * (ratio - engine.prefill_scale)


def observe_first_token(pool: Pool, request: Request, t: float, sent_t: float | None) -> None:
    """The first token is out at `t`: a handoff's time is known, or a prompt's that ran on one engine (`sent_t`)."""
    engine = pool.engines.get(request.decode_engine)
    keep_slack(pool, request, t)
    if request.phase is Phase.DECODE:
        seconds = max(t - request.entered_t, 0.0)
        pool.handoff_s += pool.handoff_weight * (seconds - pool.handoff_s)
        pool.handoff_weight = max(pool.handoff_weight / (1 + pool.handoff_weight), WEIGHT)
        if engine is not None:
            count_handoff(engine, request, seconds)
    if engine is None:
        return
    if sent_t is not None and not request.whole:
        correct_prefill(pool, engine, t, sent_t, request.prompt_tokens, own=1)
    begin_intervals(engine, request, t)


def keep_slack(pool: Pool, request: Request, t: float) -> None:
    """Move the slack towards the ninth decile of what first tokens are later than their price.

    A step up for one that is late and a ninth of it down for one that is not: stochastic descent on the quantile's
    loss (Robbins and Monro 1951; Koenker and Bassett 1978). Only those count that were let in near their limit: the
    others would be let in whatever the slack is.
    """
    target_s = request.ttft_s
    if request.price_s < 0.5 * target_s or request.attempts or request.resumed:
        return
    late = t - request.arrived_t > request.price_s
    slack_s = pool.slack_s + STEP * target_s * (KEPT if late else KEPT - 1.0)
    pool.slack_s = min(max(slack_s, 0.0), target_s)


def watch_batches(pool: Pool, t: float) -> None:
    """Note what the engines that are learned from have, before tokens change it."""
    for engine in pool.engines.values() if pool.learned else ():
        if engine.meter is not None:
            engine.meter.watch(t, engine.charged_streams, engine.charged_kv_tokens)


def learn_intervals(pool: Pool, request: Request, t: float, completion_tokens: int) -> None:
    """Learn from a stream that has just ended: its mean interval, in the mean batch that it was in.

    Intervals are linear in the batch, so means of both fit the curve as well as each interval would. One that met a
    prompt on its engine says nothing about the curve. An answer that does not stream counts from when its leg was
    sent, so it has to be longer for its handoff not to matter.
    """
    engine = pool.engines.get(request.decode_engine)
    if engine is None or engine.meter is None or request.whole:
        return
    meter = engine.meter
    meter.watch(t, engine.charged_streams, engine.charged_kv_tokens)
    began_t, stream_s, kv_token_s, before = request.metered
    tokens, elapsed_s = completion_tokens - before, t - began_t
    least = LEAST_TOKENS if request.first_token else 4 * LEAST_TOKENS
    if engine.prefills or engine.last_prefill_t > began_t or tokens < least or elapsed_s <= 0:
        return
    mean_streams, mean_kv_tokens = (meter.stream_s - stream_s) / elapsed_s, (meter.kv_token_s - kv_token_s) / elapsed_s
    meter.learned.decoded(mean_streams, mean_kv_tokens, elapsed_s / tokens)
    _spread(pool, meter.learned)


def _spread(pool: Pool, learned: Learned) -> None:
    """Tell every engine of a kind what was learned of it."""
    for engine in pool.engines.values():
        if engine.meter is not None and engine.meter.learned is learned:
            engine.curves = learned.curves
    if not pool.trusted:
        pool.refresh()
