"""Running `ansible-playbook` of this environment in a run directory, followed event by event."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from narwhal.deploy.events import Follower
from narwhal.deploy.evidence import EVENTS, LOG

BECOME_VARIABLE = "NARWHAL_BECOME_PASSWORD"
_ASKER = f"""#!/bin/sh
printf '%s' "${BECOME_VARIABLE}"
"""
_GRACE_S = 60.0
"""How long a playbook may take to end after Ctrl-C; a second one ends it at once."""
_USER_INTERRUPTED = 99


@dataclass(frozen=True, slots=True)
class Run:
    """A playbook that is to run."""

    directory: Path
    """The run directory."""
    playbook: str
    variables: Mapping[str, object] = field(default_factory=dict)
    limit: Sequence[str] | None = None
    check: bool = False
    vault: Path | None = None
    """File of further variables, encrypted by ansible-vault or not."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a playbook ended."""

    exit_code: int
    interrupted: bool


def run_playbook(run: Run, folder: Path, follower: Follower) -> Ended:
    """Run a playbook; its events go to the follower and to a file, its output to a file, both in `folder`.

    Ctrl-C goes to Ansible, which ends its tasks; a second one ends Ansible.
    """
    read, write = os.pipe()
    with tempfile.TemporaryDirectory(prefix="nw-") as scratch, _private(folder / LOG) as log:
        try:
            child = subprocess.Popen(
                command(run),
                cwd=run.directory,
                env=environment(run, Path(scratch), f"/dev/fd/{write}"),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(write,),
                start_new_session=True,  # Ctrl-C reaches it once, from here
            )
        finally:
            os.close(write)
        reader = threading.Thread(target=_follow, args=(read, folder / EVENTS, follower))
        reader.start()
        try:
            return _wait(child)
        finally:
            reader.join()  # it ends with Ansible, which alone holds the other end


def command(run: Run) -> list[str]:
    """The command line."""
    argv = [sys.executable, "-m", "ansible", "playbook", run.playbook, "--extra-vars", json.dumps(dict(run.variables))]
    argv += ["--extra-vars", f"@{run.vault.absolute()}"] if run.vault else []
    argv += ["--limit", ",".join(run.limit)] if run.limit else []
    return argv + (["--check", "--diff"] if run.check else [])


def environment(run: Run, scratch: Path, events: str) -> dict[str, str]:
    """Variables of the playbook: the run directory's configuration, and sockets in a folder of this run alone."""
    found = dict(os.environ) | {
        "ANSIBLE_CONFIG": str(run.directory.absolute() / "ansible.cfg"),
        "ANSIBLE_SSH_CONTROL_PATH_DIR": str(scratch),
        "ANSIBLE_NOCOLOR": "1",
        "LC_ALL": "C.UTF-8",
        "NARWHAL_EVENTS": events,
        "PYTHONUNBUFFERED": "1",
    }
    if found.get(BECOME_VARIABLE):
        asker = scratch / "become"
        asker.write_text(_ASKER)
        asker.chmod(0o700)
        found["ANSIBLE_BECOME_PASSWORD_FILE"] = str(asker)
    return found


def last_words(folder: Path) -> str:
    """What Ansible said last, for a run that failed before any task."""
    text = (folder / LOG).read_text(errors="replace")
    lines = [line for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("ERROR", "[ERROR]"))]
    return (errors or lines or ["ansible-playbook said nothing"])[-1]


def _follow(read: int, kept_at: Path, follower: Follower) -> None:
    with os.fdopen(read, "rb") as events, _private(kept_at) as kept:
        for line in events:
            kept.write(line)
            follower.take(line.decode(errors="replace"))
    follower.end_task()


def _wait(child: "subprocess.Popen[bytes]") -> Ended:
    interrupted = False
    try:
        child.wait()
    except KeyboardInterrupt:
        interrupted = True
        os.killpg(child.pid, signal.SIGINT)
        _wait_a_while(child)
    code = child.wait()
    return Ended(code, interrupted or code in (_USER_INTERRUPTED, -signal.SIGINT))


def _wait_a_while(child: "subprocess.Popen[bytes]") -> None:
    try:
        child.wait(_GRACE_S)
    except (KeyboardInterrupt, subprocess.TimeoutExpired):
        os.killpg(child.pid, signal.SIGKILL)


@contextmanager
def _private(path: Path) -> Iterator[IO[bytes]]:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(fd, "wb", buffering=0) as file:
        yield file
