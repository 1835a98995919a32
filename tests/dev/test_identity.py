import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from narwhal.dev.identity import Identity, alive, identify, send, stop
from narwhal.dev.process import Start, living, recorded, start, stop_recorded
from narwhal.documents import problems

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)",
]


@pytest.fixture
def bystander() -> Iterator["subprocess.Popen[bytes]"]:
    """A process that nothing here may touch."""
    process = subprocess.Popen(SLEEP)
    yield process
    assert process.poll() is None, "the bystander was killed"
    process.kill()
    process.wait()


def started(folder: Path, name: str = "local/0", argv: list[str] | None = None) -> "subprocess.Popen[bytes]":
    file = name.replace("/", "-")
    what = Start(name, argv or SLEEP, folder / f"{file}.log", folder / f"{file}.json", folder, "v1")
    return start(what)


def forge(folder: Path, **changes: int | str) -> None:
    """Make the one record in `folder` point elsewhere."""
    (process,) = recorded(folder)
    forged = process.model_copy(update={"identity": process.identity.model_copy(update=changes)})
    (folder / "local-0.json").write_text(forged.model_dump_json(by_alias=True))


def test_a_process_is_itself_until_it_ends() -> None:
    process = subprocess.Popen(SLEEP)
    identity = identify(process.pid)
    assert identity is not None
    assert alive(identity)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not alive(identity)  # a zombie is no living process
    process.wait()
    assert identify(process.pid) is None


def test_the_child_has_its_record_before_start_returns(tmp_path: Path) -> None:
    process = started(tmp_path)
    (record,) = recorded(tmp_path)
    assert record.identity == identify(process.pid)
    assert record.argv == SLEEP
    assert problems(record.model_dump(mode="json", by_alias=True), "dev-process") == []
    assert os.getsid(process.pid) == process.pid
    assert stop_recorded(tmp_path, deadline_s=5) == ["local/0"]
    process.wait()
    assert recorded(tmp_path) == []


def test_a_reused_pid_is_never_signalled(tmp_path: Path, bystander: "subprocess.Popen[bytes]") -> None:
    process = started(tmp_path)
    process.kill()
    process.wait()
    real = identify(bystander.pid)
    assert real is not None
    forge(tmp_path, pid=real.pid, start_ticks=real.start_ticks - 1)  # as when the kernel reuses the pid
    assert living(tmp_path) == {}
    assert stop_recorded(tmp_path, deadline_s=1) == []


@pytest.mark.parametrize(
    "changes", [{"boot_id": "00000000-0000-0000-0000-000000000000"}, {"start_ticks": 1}], ids=["boot", "start"]
)
def test_a_record_of_another_life_is_never_signalled(
    bystander: "subprocess.Popen[bytes]", changes: dict[str, str | int]
) -> None:
    real = identify(bystander.pid)
    assert real is not None
    forged = real.model_copy(update=changes)
    assert not alive(forged)
    assert stop([forged], 0.5) == []


def test_a_pid_that_is_gone_is_no_error() -> None:
    process = subprocess.Popen(["true"])
    identity = Identity(boot_id="x", pid=process.pid, start_ticks=1)
    process.wait()
    assert not send(identity, 15)  # type: ignore[arg-type]


def test_a_process_that_ignores_sigterm_is_killed_at_the_deadline() -> None:
    process = subprocess.Popen(STUBBORN, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    identity = identify(process.pid)
    assert identity is not None
    assert stop([identity], 0.3) == [identity]
    assert process.wait() == -9
    process.stdout.close()


def test_a_broken_record_names_nobody(tmp_path: Path) -> None:
    (tmp_path / "local-0.json").write_text("{")
    assert recorded(tmp_path) == []
