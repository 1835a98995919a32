"""The journal: rows and events as JSON Lines, written by a thread of its own so that no disk delays a token.

`journal.jsonl` holds rows; `events.jsonl` holds every event that control was given, for exact replay. Both rotate by
size. When the disk cannot be written, serving goes on: lines are dropped and counted, and the router says so.
"""

import logging
import os
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

import msgspec

from narwhal.control.events import AnyEvent
from narwhal.router.rows import AnyRow

log = logging.getLogger("narwhal.router")
FLUSH_S = 0.2
MAX_PENDING = 200_000
"""Lines that may wait for the disk; further ones are dropped and counted."""


class RotatingFile:
    """A file of lines that is closed at a size and kept as `NAME.1`, `NAME.2`, … (the newest is 1)."""

    def __init__(self, path: Path, max_bytes: int, keep: int) -> None:
        self.path, self.max_bytes, self.keep = path, max_bytes, keep
        self._file: Any = None
        self._size = 0

    def write(self, data: bytes) -> None:
        """Append whole lines. Raises `OSError`, and then nothing of them stands in the file."""
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            self._file = os.fdopen(fd, "ab", buffering=0)
            self._size = self._file.tell()
        if self._size and self._size + len(data) > self.max_bytes:
            self._rotate()
            self.write(data)
            return
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            self._file.truncate(self._size)  # no half line, after which nothing could be read
            raise
        self._size += len(data)

    def _rotate(self) -> None:
        self.close()
        for number in range(self.keep, 1, -1):
            older = self.path.with_name(f"{self.path.name}.{number - 1}")
            if older.exists():
                older.replace(self.path.with_name(f"{self.path.name}.{number}"))
        self.path.replace(self.path.with_name(f"{self.path.name}.1"))

    def close(self) -> None:
        """Close the file; the next write opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None


class Journal:
    """Rows and events, written behind. `directory` None: nothing is kept."""

    def __init__(self, directory: Path | None, *, max_bytes: int = 67108864, keep: int = 8) -> None:
        self.dropped = 0
        """Lines that could not be written."""
        self.error = ""
        """Why the last write failed; empty: it did not."""
        self._encode = msgspec.json.Encoder().encode
        self._pending: deque[tuple[int, bytes]] = deque()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._files: list[RotatingFile] = []
        if directory is not None:
            self._files = [
                RotatingFile(directory / "journal.jsonl", max_bytes, keep),
                RotatingFile(directory / "events.jsonl", max_bytes, keep),
            ]
            self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
            self._thread.start()

    def row(self, row: AnyRow) -> None:
        """Keep a row."""
        self._put(0, row)

    def event(self, event: AnyEvent) -> None:
        """Keep an event that control was given."""
        self._put(1, event)

    def first_event_line(self, line: dict[str, Any]) -> None:
        """Keep what a replay needs before the first event: the settings."""
        self._put(1, line)

    def _put(self, file: int, value: Any) -> None:
        if not self._files:
            return
        if len(self._pending) >= MAX_PENDING:
            self.dropped += 1
            return
        self._pending.append((file, self._encode(value)))

    def _run(self) -> None:
        while not self._stop.wait(FLUSH_S):
            self._flush()
        self._flush()

    def _flush(self) -> None:
        lines: tuple[list[bytes], list[bytes]] = ([], [])
        while self._pending:
            number, line = self._pending.popleft()
            lines[number].append(line)
        failure = ""
        for file, batch in zip(self._files, lines, strict=True):
            if not batch:
                continue
            try:
                file.write(b"\n".join(batch) + b"\n")
            except OSError as error:
                file.close()
                self.dropped += len(batch)
                failure = f"{file.path}: {error.strerror or error}"
        if lines[0] or lines[1]:
            self._note(failure)

    def _note(self, failure: str) -> None:
        """Say it once when the journal begins to fail, and once when it is written again."""
        if failure and not self.error:
            log.error("the journal cannot be written, serving goes on without it: %s", failure)
        elif self.error and not failure:
            log.warning("the journal is written again; %d lines were lost", self.dropped)
        self.error = failure

    def close(self, timeout_s: float = 5.0) -> None:
        """Write what waits and stop."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout_s)
        for file in self._files:
            file.close()


def utc_now() -> str:
    """The calendar time, ISO 8601 in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
