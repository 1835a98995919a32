"""A dev instance: one directory with a fleet file, the records of its processes, their logs and their state."""

import fcntl
import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from narwhal.dev.errors import DevError
from narwhal.documents import Document, write_atomically
from narwhal.fleet import Expanded, FleetError, SourceError, open_fleet


class DevInstance(Document):
    """What `narwhal dev init` made, and from what."""

    kind: Literal["DevInstance"] = "DevInstance"
    template: str
    """Template that the fleet file was made from."""
    engines: int
    """Engines it was made with; the fleet file may have been changed since."""
    fleet: str = "fleet.yaml"
    """Fleet file, relative to the directory."""
    created_at: str
    """UTC time, ISO 8601."""


class Instance:
    """The paths and the lock of an instance directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.document = path / "instance.json"
        self.fleet = path / "fleet.yaml"
        self.run = path / "run"
        """One `DevProcess` record for each process."""
        self.log = path / "log"
        self.state = path / "state"
        """The router's journal and lock."""

    @property
    def exists(self) -> bool:
        """Whether `init` made it."""
        return self.document.exists()

    def create(self, template: str, engines: int, fleet_yaml: str) -> None:
        """Write a new instance; the document comes last, so a half-made directory is none."""
        for folder in (self.path, self.run, self.log, self.state):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(self.fleet, fleet_yaml)
        created_at = datetime.now(UTC).isoformat(timespec="seconds")
        document = DevInstance(template=template, engines=engines, created_at=created_at)
        write_atomically(self.document, document.model_dump_json(by_alias=True, indent=2) + "\n")

    def expanded(self) -> Expanded:
        """Its fleet, ready to start. Raises `DevError`, with the file's line where there is one."""
        if not self.exists:
            raise DevError("no_instance", f"no dev instance in {self.path}", hint="narwhal dev init")
        try:
            expanded: Expanded = open_fleet(self.fleet)
        except (FleetError, SourceError) as error:
            hint = f"narwhal validate {self.fleet}"
            raise DevError("fleet", f"the fleet file is not valid: {error}", hint=hint) from error
        kind = expanded.fleet.engines.runtime.kind
        if kind == "container":
            raise DevError(
                "runtime",
                "dev mode starts engines as processes, engines.runtime.kind is 'container'",
                file=str(self.fleet),
                hint="set it to simulated or venv",
            )
        return expanded

    def fleet_digest(self) -> str:
        """SHA-256 of the fleet file: a process that was started from another text is out of date."""
        return hashlib.sha256(self.fleet.read_bytes()).hexdigest()

    @contextmanager
    def locked(self, verb: str) -> Iterator[None]:
        """Hold the instance's lock; the kernel drops it with the process. Raises `DevError` when it is taken."""
        if not self.path.is_dir():
            raise DevError("no_instance", f"no dev instance in {self.path}", hint="narwhal dev init")
        fd = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.read(fd, 100).decode(errors="replace").strip() or "another narwhal dev verb"
                hint = "wait for it to end, then try again"
                raise DevError("locked", f"{holder} is at work on {self.path}", hint=hint, failed=True) from None
            os.ftruncate(fd, 0)
            os.write(fd, f"`narwhal dev {verb}` (pid {os.getpid()})".encode())
            yield
        finally:
            os.close(fd)


def default_directory(environ: Mapping[str, str]) -> Path:
    """Where the dev instance lives: `dev/default` in `$NARWHAL_HOME`, else in `~/.local/share/narwhal`."""
    home = environ.get("NARWHAL_HOME") or Path(environ.get("HOME", "/")) / ".local/share/narwhal"
    return Path(home) / "dev/default"
