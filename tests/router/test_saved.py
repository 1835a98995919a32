"""What a router keeps on disk: whole or not at all, whatever a crash leaves behind."""

import contextlib
import json
import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest

from narwhal.control.events import DrainSet, HoldSet, PinSet
from narwhal.control.snapshot import Cut
from narwhal.control.succession import role_map, succeed
from narwhal.documents import problems
from narwhal.router import saved
from narwhal.router.standby import pieces, state_of
from tests.control.driving import Driver


def knowledge(epoch: int = 1, **more: Any) -> saved.Knowledge:
    driver = Driver("ppdd")
    driver.arrive(1)
    driver.feed(HoldSet(1.0, True, "tonight"))
    driver.feed(DrainSet(2.0, ("e0",), True))
    driver.feed(PinSet(3.0, "e1", "prefill"))
    driver.pool.epoch = epoch
    raw = {
        name: msgspec.Raw(piece) for name, piece in pieces(Cut(driver.control, residents=False), lambda: None).items()
    }
    told = {"version": "1", "boot_id": "b", "written_at_s": 1000.0, "now_t": 50.0, "tokens_per_byte": 0.25, **more}
    return saved.Knowledge(**told, map=role_map(driver.pool), pieces=raw)


def test_what_was_written_is_read_and_is_what_its_schema_says(tmp_path: Path) -> None:
    path = tmp_path / "deeper" / "state.json"
    saved.write(path, knowledge())
    assert problems(json.loads(path.read_text()), "saved-state") == []
    assert path.stat().st_mode & 0o777 == 0o600
    found = saved.read(path)
    assert found is not None
    assert found.map == knowledge().map
    assert (found.map.hold_reason, found.map.engines["e0"].drains, found.map.engines["e1"].pin) == (
        "tonight",
        True,
        "prefill",
    )
    control = succeed(Driver("ppdd").settings, state_of(found.pieces), 0.0)
    assert control.pool.engines["e0"].draining
    assert not control.pool.requests
    assert [p.name for p in path.parent.iterdir()] == ["state.json"]


def test_a_file_that_was_cut_off_anywhere_gives_the_one_before_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "state.json"
    saved.write(path, knowledge(epoch=1))
    saved.write(path, knowledge(epoch=2))
    whole = path.read_bytes()
    caplog.set_level(logging.WARNING)
    for size in [*range(0, len(whole), 97), len(whole) - 1]:
        path.write_bytes(whole[:size])
        caplog.clear()
        found = saved.read(path)
        assert found is not None
        assert found.map.epoch == 1
        assert str(path) in caplog.text
        assert f"the state before it, in {path}.1, is used" in caplog.text
    path.write_bytes(whole)
    assert saved.read(path).map.epoch == 2  # type: ignore[union-attr]


def test_a_torn_file_is_told_by_its_digest(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "state.json"
    saved.write(path, knowledge(epoch=1))
    saved.write(path, knowledge(epoch=2))
    whole = path.read_bytes()
    assert whole.count(b'"epoch":2') == 1
    path.write_bytes(whole.replace(b'"epoch":2', b'"epoch":7'))
    found = saved.read(path)
    assert found is not None
    assert found.map.epoch == 1
    assert "it is torn" in caplog.text
    path.write_bytes(b"\0" * len(whole))
    assert saved.read(path).map.epoch == 1  # type: ignore[union-attr]
    saved.previous(path).write_bytes(b"[]")
    assert saved.read(path) is None
    path.unlink()
    saved.previous(path).unlink()
    assert saved.read(path) is None


def test_a_crash_between_any_two_steps_of_writing_leaves_a_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.json"
    saved.write(path, knowledge(epoch=1))
    whole = saved.os.replace
    for survives in range(4):  # a write renames three times: the new file, the one before it, the new one again
        moved = 0

        def replace(*names: Any) -> None:
            nonlocal moved
            if moved == survives:  # noqa: B023
                raise KeyboardInterrupt
            moved += 1
            whole(*names)

        with monkeypatch.context() as patch:
            patch.setattr(saved.os, "replace", replace)
            patch.setattr(saved.os, "fsync", lambda fd: None)
            with pytest.raises(KeyboardInterrupt) if survives < 3 else contextlib.nullcontext():
                saved.write(path, knowledge(epoch=2))
        found = saved.read(path)
        assert found is not None
        assert found.map.epoch == (1 if survives < 3 else 2)
        saved.write(path, knowledge(epoch=1))
    assert {p.name for p in tmp_path.iterdir()} == {"state.json", "state.json.1"}


def test_what_cannot_be_written_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state.json"
    saved.write(path, knowledge(epoch=1))
    with monkeypatch.context() as patch:
        patch.setattr(saved.os, "fsync", _full)
        with pytest.raises(OSError, match="No space left"):
            saved.write(path, knowledge(epoch=2))
    assert saved.read(path).map.epoch == 1  # type: ignore[union-attr]


def _full(fd: int) -> None:
    raise OSError(28, "No space left on device")


def test_times_are_shifted_by_the_calendar_only_when_the_clock_began_anew() -> None:
    known = knowledge()
    assert saved.shift_s(known, "b", 70.0, 5000.0) == 0.0
    assert saved.shift_s(known, "c", 5.0, 1030.0) == 5.0 - 50.0 - 30.0  # 30 s ago is 30 s ago
    assert saved.shift_s(known, "c", 5.0, 900.0) == 5.0 - 50.0  # a calendar that went back says nothing
