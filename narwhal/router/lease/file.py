"""A lease as a locked file, for routers on one host: the kernel drops it with the process that holds it.

`PATH` is locked and never written; `PATH.json` holds the epoch, the holder and the role map, and is only replaced by
whoever holds the lock. A stopped process keeps its lock: who freezes a router with SIGSTOP must kill it.
"""

import base64
import contextlib
import fcntl
import json
import math
import os
from pathlib import Path
from typing import Any

from narwhal.documents import write_atomically
from narwhal.router.lease.store import Leader, LostError, StoreError, Term


class FileStore:
    """`path`: the lock file; its folder is made."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kept = path.with_name(f"{path.name}.json")
        self._lock: int | None = None

    def leader(self) -> Leader | None:
        """Who holds the lock now."""
        if self._lock is None and self._try() is not None:
            self._drop()
            return None
        kept = self._read()
        return Leader(kept["holder"], kept["epoch"]) if kept else None

    def campaign(self, holder: str) -> Term | None:
        """Take the lock, and count the epoch on."""
        kept = self._read()
        if self._lock is not None and kept.get("holder") == holder:
            return Term(kept["epoch"], math.inf)
        if self._try() is None:
            return None
        kept = self._read()  # the holder before may have written since
        epoch = kept.get("epoch", 0) + 1
        try:
            self._write({**kept, "epoch": epoch, "holder": holder})
        except StoreError:
            self._drop()
            raise
        return Term(epoch, math.inf)

    def renew(self, term: Term) -> None:
        """See that the locked file is still the one of this name: whoever replaced it made room for a second lock."""
        if self._lock is None:
            raise LostError("the lock was given up")
        with _as_store_error(self._path):
            mine = os.fstat(self._lock)
        try:
            there = os.stat(self._path)
        except FileNotFoundError:
            there = None
        if there is None or (there.st_dev, there.st_ino) != (mine.st_dev, mine.st_ino):
            self._drop()
            raise LostError(f"{self._path} was replaced")

    def resign(self, term: Term) -> None:
        """Drop the lock."""
        self._drop()

    def read(self) -> bytes | None:
        """The role map."""
        value = self._read().get("map")
        return None if value is None else base64.b64decode(value)

    def write(self, term: Term, value: bytes) -> None:
        """Write the role map."""
        self.renew(term)
        kept = self._read()
        if kept.get("epoch") != term.epoch:
            raise LostError(f"epoch {kept.get('epoch')} has begun")
        self._write({**kept, "map": base64.b64encode(value).decode()})

    def close(self) -> None:
        """Drop the lock, as the process's end would."""
        self._drop()

    def _try(self) -> int | None:
        """Lock the file; None when another process has it. Close-on-exec, so no child keeps it alive."""
        with _as_store_error(self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if isinstance(error, BlockingIOError):
                return None
            raise StoreError(f"{self._path}: {error.strerror}") from error
        self._lock = descriptor
        return descriptor

    def _drop(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _read(self) -> dict[str, Any]:
        try:
            with _as_store_error(self._kept):
                kept: dict[str, Any] = json.loads(self._kept.read_bytes())
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise StoreError(f"{self._kept} is no role map: {error}") from error
        return kept

    def _write(self, kept: dict[str, Any]) -> None:
        with _as_store_error(self._kept):
            write_atomically(self._kept, json.dumps(kept), mode=0o600)


@contextlib.contextmanager
def _as_store_error(path: Path) -> Any:
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror or error}") from error
