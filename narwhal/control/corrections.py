"""Live corrections of an engine's curves, from what it really served: bounded, slowly forgotten."""

from narwhal.control.state import Engine, Pool

LEAST, MOST = 0.5, 2.0
"""Bounds of a correction (`3-control.md`, Curves)."""
WEIGHT = 0.1
"""Weight of one sample."""


def correct_prefill(engine: Engine, t: float, sent_t: float, prompt_tokens: int) -> None:
    """Correct an engine's prefill curve with a prompt that was sent at `sent_t` and answered at `t`.

    Service began when the prompt was sent or when the one before it left, whichever is later. A prompt that shared
    the engine with decodes says nothing about the curve and is left out.
    """
    began_t = sent_t if sent_t > engine.last_prefill_t else engine.last_prefill_t
    engine.last_prefill_t = t
    predicted_s = engine.curves.prefill_s(prompt_tokens)
    if engine.streams or t <= began_t or predicted_s <= 0:
        return
    ratio = min(max((t - began_t) / predicted_s, LEAST), MOST)
    weight = max(WEIGHT, 1.0 / (engine.samples + 1)) if not engine.measured else WEIGHT
    engine.prefill_scale += weight * (ratio - engine.prefill_scale)
    engine.samples += 1


def observe_handoff(pool: Pool, seconds: float) -> None:
    """Take the time from sending leg 2 to its first token into the moving mean that admission charges."""
    pool.handoff_s += WEIGHT * (seconds - pool.handoff_s)
