"""The fixtures of the contract tests: every test runs on each kind of engine that its fixtures come in."""

from collections.abc import Callable, Iterator

import pytest

from tests.contract.engines import Engine, FreshPrompt, StartEngine
from tests.contract.kinds import KINDS, Kind, Simulated


@pytest.fixture(
    scope="session", params=["simulated", pytest.param("vllm", marks=[pytest.mark.vllm, pytest.mark.timeout(1800)])]
)
def kind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kind]:
    found = KINDS[request.param](tmp_path_factory.mktemp(request.param))
    yield found
    found.close()


@pytest.fixture
def start_engine(kind: Kind) -> Iterator[StartEngine]:
    """Starts simulated engines with options of their own: only for tests that are `simulated_only`."""
    assert isinstance(kind, Simulated)
    started: list[Engine] = []

    def start(**options: object) -> Engine:
        started.append(kind.start(**options))
        return started[-1]

    yield start
    for engine in started:
        if engine.alive:
            engine.kill()


@pytest.fixture
def engine_pair(kind: Kind) -> tuple[Engine, Engine]:
    """Two engines that tests share; they leave them healthy."""
    return kind.pair()


@pytest.fixture
def brief_pair(kind: Kind) -> tuple[Engine, Engine]:
    """Two engines that tests share, which keep handoffs for a few seconds only."""
    return kind.brief_pair()


@pytest.fixture
def engine(engine_pair: tuple[Engine, Engine]) -> Engine:
    return engine_pair[0]


@pytest.fixture
def victim(kind: Kind) -> Engine:
    """An engine that the test may end."""
    return kind.victim()


_prompts = iter(range(1, 10**6))


@pytest.fixture
def fresh_prompt() -> FreshPrompt:
    """Prompts that no engine has seen: every call gives other ones."""

    def make(tokens: int) -> list[int]:
        number = next(_prompts)
        return [
            *(300 + number // 1000**place % 1000 for place in range(2)),
            *(300 + n % 1000 for n in range(tokens - 2)),
        ]

    return make


@pytest.fixture
def overwrite(fresh_prompt: FreshPrompt) -> Callable[[Engine], None]:
    """Has an engine use all its KV blocks for something else."""

    def run(engine: Engine) -> None:
        tokens = engine.kind.capacity_tokens - engine.kind.block_tokens
        for _ in range(2):
            assert engine.complete(fresh_prompt(tokens), 1).status == 200

    return run
