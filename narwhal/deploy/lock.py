"""One deployment of a run directory at a time on this machine; the hosts keep a lock of their own."""

import fcntl
import getpass
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from narwhal.deploy.errors import DeployError
from narwhal.deploy.times import utc_now

LOCK = ".lock"


def operator() -> str:
    """Who deploys: user@machine."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


@contextmanager
def locked(directory: Path, what: str) -> Iterator[None]:
    """Hold the lock of a run directory. Raises `DeployError` naming who holds it; a dead holder holds nothing."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / LOCK
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            hint = "wait for it, or end it: it stops by Ctrl-C and leaves what it did"
            raise DeployError("locked", f"it is being deployed: {_holder(path)}", file=str(path), hint=hint) from None
        file.truncate(0)
        file.write(json.dumps({"owner": operator(), "pid": os.getpid(), "since": utc_now(), "what": what}) + "\n")
        file.flush()
        yield


def _holder(path: Path) -> str:
    try:
        found = json.loads(path.read_text())
        return f"{found['what']} by {found['owner']}, process {found['pid']}, since {found['since']}"
    except (ValueError, KeyError, TypeError, OSError):
        return "somebody holds its lock"
