"""The fixtures of the contract tests.

The tests speak to engines over HTTP alone. A function that starts one is all that another kind of engine has to
bring: it takes options (`kv_lease_s=2`) and returns an `Engine`; `starting` is the one place that names it.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.contract.engines import BLOCK_TOKENS, KV_CAPACITY_TOKENS, Engine, StartEngine, starting


@pytest.fixture
def start_engine(tmp_path: Path) -> Iterator[StartEngine]:
    with starting(tmp_path) as start:
        yield start


@pytest.fixture(scope="module")
def engine_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Engine, Engine]]:
    """Two engines that a module shares; its tests leave them healthy."""
    with starting(tmp_path_factory.mktemp("pair")) as start:
        yield start(), start()


@pytest.fixture(scope="module")
def engine(engine_pair: tuple[Engine, Engine]) -> Engine:
    return engine_pair[0]


_prompts = iter(range(1, 10**6))


@pytest.fixture
def fresh_prompt() -> Callable[[int], list[int]]:
    """Prompts that no engine has seen: every call gives other ones."""

    def make(tokens: int) -> list[int]:
        number = next(_prompts)
        return [
            *(300 + number // 1000**place % 1000 for place in range(2)),
            *(300 + n % 1000 for n in range(tokens - 2)),
        ]

    return make


@pytest.fixture
def overwrite(fresh_prompt: Callable[[int], list[int]]) -> Callable[[Engine], None]:
    """Has an engine use all its KV blocks for something else."""

    def run(engine: Engine) -> None:
        assert engine.complete(fresh_prompt(KV_CAPACITY_TOKENS - BLOCK_TOKENS), 1).status == 200
        assert engine.complete(fresh_prompt(KV_CAPACITY_TOKENS - BLOCK_TOKENS), 1).status == 200

    return run
