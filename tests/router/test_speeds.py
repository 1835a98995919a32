"""Engines get the profile of the contract that they run with, and the prior when there is none."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from narwhal.control import Curves
from narwhal.control.events import EngineJoined, EngineRevised
from narwhal.fleet import Expanded, check_text, expand, load_profile
from narwhal.profiling import engine_facts, save_profile
from narwhal.router import speeds
from narwhal.router.members import Members
from narwhal.router.speeds import Speeds
from tests.fleet.fleets import BASE

PAGE = b'vllm:cache_config_info{block_size="16",num_gpu_blocks="1000"} 1.0\nvllm:num_requests_running 0\n'
VERSION = json.dumps({"version": "0.26.0"}).encode()


class Shell:
    """What `Members` needs of a shell: it keeps the events."""

    def __init__(self) -> None:
        self.loop = None
        self.pools: dict[str, Any] = {}
        self.events: list[Any] = []
        self.left: Any = None
        self.control = type("Control", (), {"pool": type("Pool", (), {"engines": {}})()})()

    def now(self) -> float:
        return 1.0

    def connect(self, engine: str, url: str, reach: Any) -> None:
        self.pools[engine] = reach.pool(self.loop, url)

    def feed(self, event: Any) -> list[Any]:
        self.events.append(event)
        return []


class Probes:
    def watch(self, engine: str) -> None: ...

    def forget(self, engine: str) -> None: ...


class Reach:
    def pool(self, loop: Any, url: str) -> str:
        return "pool"


@pytest.fixture
def expanded() -> Expanded:
    fleet = check_text(BASE).fleet
    assert fleet is not None
    return expand(fleet)


@pytest.fixture
def joined(expanded: Expanded) -> tuple[Shell, Members]:
    shell = Shell()
    members = Members(shell, Probes(), Reach())  # type: ignore[arg-type]
    members.use_profile(expanded.fleet, load_profile("demo"))
    members.join(expanded.engines[0])
    return shell, members


def answer(monkeypatch: pytest.MonkeyPatch, status: int = 200, body: bytes = VERSION) -> None:
    async def get(pool: Any, path: str, timeout_s: float) -> tuple[int, bytes]:
        assert path == "/version"
        return status, body

    monkeypatch.setattr(speeds, "get", get)


def store(expanded: Expanded, folder: Path) -> str:
    contract = engine_facts(expanded.fleet, expanded.engines[0], 1, PAGE, VERSION).contract
    save_profile(folder, load_profile("8b-h200").model_copy(update={"contract": contract}))
    return contract


def look(shell: Shell, members: Members, folder: Path, expanded: Expanded) -> Any:

    asyncio.run(Speeds(members, folder).look(expanded.engines[0].id, PAGE, expanded.fleet, 1.0))
    return shell.events[-1]


def test_a_measured_contract_is_used(
    joined: tuple[Shell, Members], expanded: Expanded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(expanded, tmp_path)
    answer(monkeypatch)
    event = look(*joined, tmp_path, expanded)
    assert isinstance(event, EngineRevised)
    assert event.measured
    assert event.curves.b_s == Curves.from_profile(load_profile("8b-h200")).b_s
    assert event.curves.max_num_seqs == expanded.fleet.engines.max_num_seqs, "limits are the fleet file's"


def test_another_version_makes_the_profile_stale(
    joined: tuple[Shell, Members], expanded: Expanded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(expanded, tmp_path)
    answer(monkeypatch)
    look(*joined, tmp_path, expanded)
    answer(monkeypatch, body=b'{"version": "0.27.0"}')
    event = look(*joined, tmp_path, expanded)
    assert not event.measured
    assert event.curves.b_s == Curves.from_profile(load_profile("demo")).b_s
    assert event.curves.kv_capacity_tokens == 16_000, "its own cache is known without a profile"


@pytest.mark.parametrize(("status", "body"), [(404, b"{}"), (200, b"nonsense"), (200, b'{"version": 3}')])
def test_an_engine_that_does_not_tell_goes_by_the_prior(
    joined: tuple[Shell, Members], expanded: Expanded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    status: int, body: bytes,
) -> None:  # fmt: skip
    store(expanded, tmp_path)
    answer(monkeypatch, status, body)
    event = look(*joined, tmp_path, expanded)
    assert isinstance(event, EngineJoined), "nothing new was said of it"
    assert not event.measured


def test_a_broken_profile_is_named_and_not_used(
    joined: tuple[Shell, Members],
    expanded: Expanded,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    contract = store(expanded, tmp_path)
    (tmp_path / f"{contract}.json").write_text("{")
    answer(monkeypatch)
    event = look(*joined, tmp_path, expanded)
    assert not event.measured
    assert event.curves.b_s == Curves.from_profile(load_profile("demo")).b_s
    assert "goes by the prior" in caplog.text
