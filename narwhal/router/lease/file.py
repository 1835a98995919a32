"""A lease as a locked file, for routers on one host: the kernel drops it with the process that holds it.

`PATH` is locked and never written; `PATH.json` holds the epoch, the holder and the role map, and is only replaced by
whoever holds the lock. What it held before is kept in `PATH.json.1`: where one is broken, the other is used.
A stopped process keeps its lock: who freezes a router with SIGSTOP must kill it.
"""

import contextlib
import fcntl
import logging
import math
import os
from pathlib import Path
from typing import Any

import msgspec

from narwhal.documents import write_atomically
from narwhal.router.lease.store import Leader, LostError, StoreError, Term

log = logging.getLogger("narwhal.router")


class _Kept(msgspec.Struct, frozen=True):
    """What the file holds."""

    epoch: int = 0
    """0: nobody led yet."""
    holder: str = ""
    map: bytes | None = None
    """None before the first; base64 in the file."""


class FileStore:
    """`path`: the lock file; its folder is made."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kept = path.with_name(f"{path.name}.json")
        self._previous = path.with_name(f"{path.name}.json.1")
        self._said = ""
        """What was last said of a broken file."""
        self._lock: int | None = None

    def leader(self) -> Leader | None:
        """Who holds the lock now."""
        if self._lock is None and self._try() is not None:
            self._drop()
            return None
        kept = self._read()
        return Leader(kept.holder, kept.epoch) if kept.epoch else None

    def campaign(self, holder: str) -> Term | None:
        """Take the lock, and count the epoch on. Who cannot read the role map does not lead."""
        held = self._lock is not None
        if not held and self._try() is None:
            return None
        try:
            kept = self._read()
            if not (held and kept.holder == holder):
                kept = msgspec.structs.replace(kept, epoch=kept.epoch + 1, holder=holder)
                self._write(kept, kept)  # both of this epoch, so that it never comes twice
        except StoreError as error:
            self._drop()
            raise StoreError(f"nobody leads: {error}") from error
        return Term(kept.epoch, math.inf)

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
        return self._read().map

    def write(self, term: Term, value: bytes) -> None:
        """Write the role map."""
        self.renew(term)
        kept = self._read()
        if kept.epoch != term.epoch:
            raise LostError(f"epoch {kept.epoch} has begun")
        self._write(msgspec.structs.replace(kept, map=value), kept)

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

    def _read(self) -> _Kept:
        """What is kept, or was before where that is broken; empty before the first. Raises `StoreError`."""
        broken: dict[Path, ValueError] = {}
        for path in (self._kept, self._previous):
            try:
                with _as_store_error(path):
                    kept = msgspec.json.decode(path.read_bytes(), type=_Kept)
            except FileNotFoundError:
                continue
            except ValueError as error:
                broken[path] = error
            else:
                self._say(broken)
                return kept
        if not broken:
            return _Kept()
        first = next(iter(broken.values()))
        many = len(broken) > 1
        names = " and ".join(str(path) for path in broken)
        raise StoreError(
            f"{names} {'are' if many else 'is'} no role map ({first}); move {'them' if many else 'it'} away to begin "
            "with an empty map"
        )

    def _say(self, broken: dict[Path, ValueError]) -> None:
        """Say once that a file is broken, and what is read instead."""
        said = "".join(f"{path} is no role map ({error})" for path, error in broken.items())
        if said and said != self._said:
            log.error("%s: the one before it is gone on from, %s", said, self._previous)
        self._said = said

    def _write(self, kept: _Kept, before: _Kept) -> None:
        for path, value in ((self._previous, before), (self._kept, kept)):
            with _as_store_error(path):
                write_atomically(path, msgspec.json.encode(value), mode=0o600)


@contextlib.contextmanager
def _as_store_error(path: Path) -> Any:
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror or error}") from error
