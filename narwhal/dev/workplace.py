"""The demo's directory: gone when the demo ends, and by the next demo when it was killed."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from narwhal.dev.identity import identify
from narwhal.dev.process import DevProcess, living, recorded, stop_recorded
from narwhal.documents import write_atomically

_PREFIX = "narwhal-demo-"
MOVING = "moving"
"""Name of the fleet whose roles move, and its folder."""
_STOP_DEADLINE_S = 5.0


@contextmanager
def workplace() -> Iterator[Path]:
    """A new temporary directory that records this process as its owner; those of dead owners are removed first."""
    for folder in _abandoned(Path(tempfile.gettempdir())):
        for run in folder.glob("*/run"):
            stop_recorded(run, deadline_s=_STOP_DEADLINE_S)
        shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as name:
        _record_owner(Path(name))
        yield Path(name)


def running_demo() -> Path | None:
    """The instance of a demo of this user's that runs: of its fleet whose roles move. Of several, the latest."""
    found = [
        folder for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*") if _is_mine(folder) and living(folder)
    ]
    latest = max(found, key=lambda folder: folder.stat().st_mtime, default=None)
    return latest / MOVING if latest is not None else None


def _abandoned(where: Path) -> list[Path]:
    """Directories of this user whose owner is dead. One without an owner is just being made: it stays."""
    mine = [folder for folder in where.glob(f"{_PREFIX}*") if _is_mine(folder)]
    return [folder for folder in mine if recorded(folder) and not living(folder)]


def _is_mine(folder: Path) -> bool:
    try:
        return folder.lstat().st_uid == os.getuid() and folder.is_dir() and not folder.is_symlink()
    except FileNotFoundError:
        return False


def _record_owner(folder: Path) -> None:
    identity = identify(os.getpid())
    assert identity is not None
    owner = DevProcess(
        name="demo",
        identity=identity,
        argv=sys.argv,
        log="",
        inputs="",
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    write_atomically(folder / "owner.json", owner.model_dump_json(by_alias=True, indent=2) + "\n")
