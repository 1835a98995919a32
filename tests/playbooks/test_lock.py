"""The lock of a host: whoever comes first has it, and everybody else is told who that is."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.playbooks.loading import load

lock = load("roles", "lock", "files", "lock.py")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "lock"


def owner(path: Path) -> object:
    return json.loads(path.read_text())["owner"] if path.exists() else None


def test_the_owner_takes_it_again_and_gives_it_back(path: Path) -> None:
    lock.main("take", str(path), "me", "Gate B", "h1")
    before = path.read_text()
    lock.main("take", str(path), "me", "Gate C", "h1")
    assert path.read_text() == before
    lock.main("release", str(path), "you")
    assert owner(path) == "me"
    lock.main("release", str(path), "me")
    lock.main("release", str(path), "me")
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("verb", ["take", "look"])
def test_somebody_else_is_told_whose_it_is(path: Path, verb: str) -> None:
    lock.main("take", str(path), "eve@desk", "Gate B", "h1")
    with pytest.raises(SystemExit, match=r"eve@desk works on h1 since 20.*Z \(Gate B\); ask them, or take it over"):
        lock.main(verb, str(path), "me", "Gate C", "h1")
    assert owner(path) == "eve@desk"
    lock.main("seize", str(path), "me", "Gate C", "h1")
    assert owner(path) == "me"


def test_a_look_takes_nothing(path: Path) -> None:
    lock.main("look", str(path), "me", "Gate B", "h1")
    assert not path.parent.exists()


def test_a_lock_that_cannot_be_read_is_somebody_s(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("")
    with pytest.raises(SystemExit, match="None works on h1 since unknown"):
        lock.main("take", str(path), "me", "Gate C", "h1")


def test_of_many_at_once_one_has_it(path: Path) -> None:
    argv = [sys.executable, str(Path(lock.__file__ or "")), "take", str(path)]
    names = [f"operator {number}" for number in range(6)]
    running = [subprocess.Popen([*argv, name, "Gate B", "h1"], stderr=subprocess.DEVNULL) for name in names]
    codes = [process.wait() for process in running]
    assert sorted(codes) == [0, 1, 1, 1, 1, 1]
    assert owner(path) == names[codes.index(0)]
    assert [found.name for found in path.parent.iterdir()] == ["lock"]
