"""Gate A's digest of a model's directory: the engine's own, in slices."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narwhal.engine.tree import tree_digest
from tests.playbooks.loading import load

program = load("roles", "discover", "files", "digest.py")
NAMES = st.sampled_from(
    ["config.json", "README.md", "readme", "a", "b", ".cache/x", "sub/.git/y", "sub/a", "sub/Z", "sub-1"]
)


@given(st.dictionaries(NAMES, st.binary(max_size=40), max_size=8))
def test_it_is_the_digest_that_the_engine_compares(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]
) -> None:
    folder = tmp_path_factory.mktemp("model")
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    answer = program.digest(str(folder), "", 60)
    assert answer["complete"]
    assert answer["digest"] == tree_digest(folder)


def test_a_slice_without_time_begins_nothing_and_the_next_one_finishes(tmp_path: Path) -> None:
    folder, cache = make(tmp_path)
    first = program.digest(str(folder), cache, -1)
    assert (first["complete"], first["digest"]) == (False, None)
    assert first["progress"] == "hashed 0.0 of 0.0 GB"
    assert program.digest(str(folder), cache, 60)["digest"] == tree_digest(folder)


def test_what_is_known_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, cache = make(tmp_path)
    program.digest(str(folder), cache, 60)
    read: list[str] = []
    real = program.hash_file
    monkeypatch.setattr(program, "hash_file", lambda path: read.append(os.path.basename(path)) or real(path))
    (folder / "b").write_bytes(b"another")
    assert program.digest(str(folder), cache, 60)["digest"] == tree_digest(folder)
    assert read == ["b"]


def test_a_change_that_keeps_size_and_time_is_seen(tmp_path: Path) -> None:
    folder, cache = make(tmp_path)
    program.digest(str(folder), cache, 60)
    before = (folder / "b").stat()
    (folder / "b").write_bytes(b"BB")
    os.utime(folder / "b", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert program.digest(str(folder), cache, 60)["digest"] == tree_digest(folder)


def test_a_cache_that_is_broken_is_made_again(tmp_path: Path) -> None:
    folder, cache = make(tmp_path)
    Path(cache).parent.mkdir()
    Path(cache).write_text("{")
    assert program.digest(str(folder), cache, 60)["digest"] == tree_digest(folder)


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    answer = program.digest(str(tmp_path / "none"), "", 60)
    assert (answer["exists"], answer["complete"], answer["digest"]) == (False, True, None)


def test_a_file_that_cannot_be_read_is_the_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    program.main([str(tmp_path), "--cache", ""])
    assert f'"problem": "{tmp_path}/gone: No such file or directory"' in capsys.readouterr().out


def make(tmp_path: Path) -> tuple[Path, str]:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "a").write_bytes(b"a")
    (folder / "b").write_bytes(b"bb")
    return folder, str(tmp_path / "cache" / "digests.json")
