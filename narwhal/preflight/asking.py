"""What came of asking several engines the same."""

import time
from collections.abc import Awaitable, Mapping
from typing import TypeVar

from narwhal.preflight.pairs import Verdict
from narwhal.profiling import EngineError

T = TypeVar("T")


async def timed(work: Awaitable[T]) -> tuple[T | EngineError, float]:
    """What `work` gives, or its `EngineError`, and how long it took, in seconds."""
    started_t = time.perf_counter()
    try:
        found: T | EngineError = await work
    except EngineError as error:
        found = error
    return found, time.perf_counter() - started_t


def failures(found: Mapping[str, tuple[object, float]]) -> dict[str, Verdict]:
    """A verdict on each engine that gave an error."""
    return {
        engine: Verdict("FAIL", str(one), f"look at the log of {engine}")
        for engine, (one, _) in found.items()
        if isinstance(one, EngineError)
    }


def seconds_of(found: Mapping[str, tuple[object, float]]) -> dict[str, float]:
    """How long each engine took."""
    return {engine: seconds for engine, (_, seconds) in found.items()}
