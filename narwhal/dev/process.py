"""Starting detached processes that can always be found again, whoever dies when."""

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from narwhal.dev.identity import Identity, alive, identify, stop
from narwhal.documents import Document, write_atomically

_PR_SET_PDEATHSIG = 1


class DevProcess(Document):
    """The record of one process of a dev instance: who it is, and how it was started."""

    kind: Literal["DevProcess"] = "DevProcess"
    name: str
    """`router`, the id of an engine: `local/0`, or of its sidecar: `local/0/attest`."""
    identity: Identity
    argv: list[str]
    log: str
    """Path of the file that holds its output."""
    inputs: str
    """Digest of what it was started from; another digest means that it is out of date."""
    started_at: str
    """UTC time, ISO 8601."""


@dataclass(frozen=True, slots=True)
class Start:
    """A process to start."""

    name: str
    argv: Sequence[str]
    log: Path
    record: Path
    """Where its `DevProcess` goes."""
    cwd: Path
    inputs: str
    """Digest of what it is started from: goes into the record."""


def start(what: Start, *, die_with_parent: bool = False) -> "subprocess.Popen[bytes]":
    """Start a process in a session of its own, its output in its log.

    The child writes its own record before it becomes the program. So there is no moment at which a killed
    parent leaves a process that no record names. `die_with_parent` has the kernel kill it when the starting
    thread ends. Callers have one thread: the child runs Python between fork and exec.
    """
    libc = ctypes.CDLL(None)
    parent = os.getpid()

    def before_exec() -> None:
        if die_with_parent:
            libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
            if os.getppid() != parent:
                os._exit(1)
        identity = identify(os.getpid())
        assert identity is not None
        now = datetime.now(UTC).isoformat(timespec="seconds")
        process = DevProcess(
            name=what.name,
            identity=identity,
            argv=list(what.argv),
            log=str(what.log),
            inputs=what.inputs,
            started_at=now,
        )
        write_atomically(what.record, process.model_dump_json(by_alias=True, indent=2) + "\n")

    with what.log.open("ab") as log:
        return subprocess.Popen(
            list(what.argv),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=what.cwd,
            start_new_session=True,
            preexec_fn=before_exec,
        )


def recorded(folder: Path) -> list[DevProcess]:
    """The processes that records in `folder` name, living or not, by name. A broken record names nobody."""
    processes = []
    for path in sorted(folder.glob("*.json")):
        try:
            processes.append(DevProcess.model_validate_json(path.read_bytes()))
        except (OSError, ValueError):
            continue
    return processes


def living(folder: Path) -> dict[str, DevProcess]:
    """The recorded processes that still run, by name."""
    return {process.name: process for process in recorded(folder) if alive(process.identity)}


def stop_recorded(folder: Path, *, deadline_s: float) -> list[str]:
    """Stop every recorded process that still runs and remove the records; returns the names of those stopped.

    The router goes first, so that it ends its streams itself instead of seeing its engines vanish.
    """
    processes = living(folder)
    router = processes.pop("router", None)
    until_t = time.monotonic() + deadline_s
    if router is not None:
        stop([router.identity], deadline_s)
    stop([process.identity for process in processes.values()], max(until_t - time.monotonic(), 1.0))
    for path in folder.glob("*.json"):
        path.unlink(missing_ok=True)
    return sorted([*processes, *(["router"] if router else [])])
