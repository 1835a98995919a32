"""Decode cells on machines that are too busy to see every token."""

import asyncio
from typing import Any

import pytest

from narwhal.profiling import EngineError, EngineUrl, measure_decode, sweep
from narwhal.profiling.client import Answer

ENGINE = EngineUrl("gpu-1/0", "http://127.0.0.1:1")


def measured(monkeypatch: pytest.MonkeyPatch, seen_from: int) -> tuple[Any, list[int]]:
    """What a cell of two streams comes to when answers shorter than `seen_from` tokens come in one piece."""
    asked: list[int] = []

    async def ask(engine: EngineUrl, path: str, body: dict[str, Any], *, timeout_s: float) -> Answer:
        tokens = body["max_tokens"]
        asked.append(tokens)
        if tokens < seen_from:
            return Answer(0.0, 200, b"", [1.0], [tokens])
        return Answer(0.0, 200, b"", [n * 0.01 for n in range(1, tokens + 1)], list(range(1, tokens + 1)))

    monkeypatch.setattr(sweep, "ask", ask)
    return asyncio.run(measure_decode(ENGINE, "m", [[1, 2], [3, 4]], 32, 1.0)), asked


def test_streams_whose_tokens_came_at_once_run_again_and_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    sample, asked = measured(monkeypatch, 500)
    assert asked == [32, 32, 128, 128, 512, 512]
    assert sample.interval_s == pytest.approx(0.01)


def test_streams_that_are_never_seen_together_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EngineError, match="too busy to see it"):
        measured(monkeypatch, 10**6)
