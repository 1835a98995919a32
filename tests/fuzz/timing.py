"""How long fuzzers run, and from which seeds: `NARWHAL_FUZZ_SECONDS` for all of them; `make fuzz` says 600."""

import os
import time
from collections.abc import Callable
from random import Random

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

SECONDS = float(os.environ.get("NARWHAL_FUZZ_SECONDS", "60"))
EXAMPLES = 10
"""Seeds of a batch."""
_SETTINGS = settings(
    deadline=None,
    database=None,
    max_examples=EXAMPLES,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def many_seeds(
    share: float, one: Callable[[Random], None], after: Callable[[], None] = lambda: None, *, each: int = 10
) -> int:
    """Run `one` from fresh seeds for a share of the time, at least one batch; returns how often it ran.

    Hypothesis chooses the seeds and names the one that failed. It draws nothing else, and each seed serves `each` runs,
    since its own bookkeeping would take most of the time. `after` runs after each batch.
    """

    @_SETTINGS
    @given(st.integers(0, 2**64))
    def batch(seed: int) -> None:
        random = Random(seed)
        for _ in range(each):
            one(random)

    until_t = time.monotonic() + share * SECONDS
    batches = 0
    while batches == 0 or time.monotonic() < until_t:
        batch()
        after()
        batches += 1
    return batches * EXAMPLES * each
