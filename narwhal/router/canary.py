"""Finding a canary: a prompt whose greedy answer is the same however it is computed, and not with another KV.

The log-probabilities of first and second choice must lie further apart, at each token, than two computations of the
same prompt differ; else near ties would fall either way, and a right handoff would look wrong.
"""

import json
import random
import uuid
from dataclasses import dataclass

from narwhal.preflight import ROUTE, Json, prompt_of
from narwhal.profiling import EngineError, EngineUrl, ask

TOKENS = 8
"""Tokens of the answer."""
BLOCKS = 3
DRAWS = 8
"""Prompts that are drawn before the search is given up."""
NOISE_FACTOR = 4.0
"""How many times the noise a gap must be."""
TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Armed:
    """A prompt that tells."""

    prompt: list[int]
    tokens: int
    """Tokens of its answer."""
    gap: float
    """Least difference of log-probability between first and second choice."""
    noise: float
    """Largest difference of the same log-probability between two computations."""


async def arm(engine: EngineUrl, model: str, block: int, min_gap: float, draw: random.Random) -> Armed | str:
    """A prompt of three blocks and a partial one that tells, or why there is none. Raises `EngineError`."""
    best = "the engine tells no log-probabilities"
    for _ in range(DRAWS):
        prompt = prompt_of(BLOCKS * block + max(block // 2, 1), draw)
        first, second = [await _answer(engine, model, prompt) for _ in range(2)]
        if not first or not second:
            return best
        noise = max(abs(a[0] - b[0]) for a, b in zip(first, second, strict=False))
        gap = min(a - b for a, b in first)
        if len(first) == len(second) and gap >= max(min_gap, NOISE_FACTOR * noise):
            return Armed(prompt, TOKENS, gap, noise)
        best = f"the last of {DRAWS} prompts has a gap of {gap:.3f} at a noise of {noise:.3f}, {min_gap:g} is wanted"
    return best


async def _answer(engine: EngineUrl, model: str, prompt: list[int]) -> list[tuple[float, float]]:
    """Log-probabilities of first and second choice for each token; empty: it tells none."""
    body: Json = {
        "model": model,
        "prompt": prompt,
        "max_tokens": TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": 2,
        "cache_salt": uuid.uuid4().hex,
    }
    raw = (await ask(engine, ROUTE, body, timeout_s=TIMEOUT_S)).body
    try:
        told = json.loads(raw)["choices"][0].get("logprobs") or {}
        rows = [sorted(map(float, row.values()), reverse=True) for row in told.get("top_logprobs") or []]
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise EngineError(f"{engine.id}: the answer is no completion: {error!r}") from error
    return [(row[0], row[1]) for row in rows] if all(len(row) > 1 for row in rows) else []
