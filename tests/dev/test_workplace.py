import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from narwhal.dev.workplace import workplace

KILLED = """
import sys, tempfile, time
tempfile.tempdir = sys.argv[1]
from narwhal.dev.workplace import workplace
with workplace() as folder:
    (folder / "moving").mkdir()
    print(folder, flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_workplace_is_gone_when_its_demo_ends(temporary: Path) -> None:
    with workplace() as folder:
        assert list(temporary.iterdir()) == [folder]
    assert list(temporary.iterdir()) == []


def test_the_next_demo_removes_what_a_killed_one_left_and_nothing_else(temporary: Path) -> None:
    ownerless = temporary / "narwhal-demo-being-made"
    ownerless.mkdir()
    other = subprocess.Popen([sys.executable, "-c", KILLED, str(temporary)], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None
        left = Path(other.stdout.readline().strip())
        (temporary / "narwhal-demo-link").symlink_to(left)
        with workplace():
            assert left.is_dir()
    finally:
        other.kill()
        other.communicate()
    assert left.is_dir()
    with workplace():
        assert not left.exists()
        assert ownerless.is_dir()
