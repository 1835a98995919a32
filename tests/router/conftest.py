"""A router and two fake engines that a module shares: the first holds prefill, the second decode."""

from collections.abc import Iterator

import pytest

from tests.router.harness import FakeEngine, Router, routing


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[FakeEngine, FakeEngine]]:
    engines = FakeEngine(), FakeEngine()
    yield engines
    for engine in engines:
        engine.close()


@pytest.fixture(scope="module")
def shared_router(pair: tuple[FakeEngine, FakeEngine], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Router]:
    with routing(tmp_path_factory.mktemp("router"), list(pair)) as router:
        yield router


@pytest.fixture
def router(shared_router: Router, prefill: FakeEngine, decode: FakeEngine) -> Router:
    """The shared router, with engines that answer in good health."""
    return shared_router


@pytest.fixture
def prefill(pair: tuple[FakeEngine, FakeEngine]) -> FakeEngine:
    pair[0].reset()
    return pair[0]


@pytest.fixture
def decode(pair: tuple[FakeEngine, FakeEngine]) -> FakeEngine:
    pair[1].reset()
    return pair[1]
