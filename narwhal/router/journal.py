"""The journal: rows and events as JSON Lines, written by a thread of its own so that no disk delays a token.

`journal.jsonl` holds rows; `events.jsonl` holds every event that control was given, for exact replay. Both rotate by
size. Each file of events begins with the state that control had before its first event, so that it can be replayed by
itself. When the disk cannot be written, serving goes on: lines are dropped and counted, and the router says so.
"""

import contextlib
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from narwhal.control.events import AnyEvent
from narwhal.control.snapshot import LinesLost
from narwhal.router.rows import AnyRow

log = logging.getLogger("narwhal.router")
FLUSH_S = 0.2
MAX_PENDING = 200_000
"""Lines that may wait for the disk; further ones are dropped and counted."""
SNAPSHOT_S = 60.0
"""Time between two snapshots of control's state among the events, in seconds."""
PAUSE_S = 0.002
"""Between two pieces of work on one line."""
NO_STATE = "no snapshot of control's state: the journal's events cannot be replayed from here"
ROWS, EVENTS, NEW_FILE = 0, 1, 2
"""Where a line goes; a file of events is begun with the last."""


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
            self.rotate()
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

    def rotate(self) -> None:
        """Close the file and keep it as the newest of the closed ones. Raises `OSError`."""
        self.close()
        if not self.path.exists():
            return
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


StateLine = Callable[[Callable[[], None]], Any]
"""Makes the line that holds control's state, in the journal's thread; calls what it is given after each piece of work,
so that the loop gets the interpreter in between."""


class _State:
    """A place among the events where control's state is to stand."""

    __slots__ = ("make", "new_file")

    def __init__(self, make: StateLine, *, new_file: bool) -> None:
        self.make = make
        self.new_file = new_file
        """Whether it begins a new file of events."""


class Journal:
    """Rows and events, written behind. `directory` None: nothing is kept."""

    def __init__(self, directory: Path | None, *, max_bytes: int = 67108864, keep: int = 8) -> None:
        self.dropped = 0
        """Lines that could not be written."""
        self.error = ""
        """Why the last write failed; empty: it did not."""
        self.snapshot: Callable[[float], StateLine] = lambda t: _unknown
        """Takes control's state, for the time of the event that follows it."""
        self._encode = msgspec.json.Encoder().encode
        self._pending: tuple[deque[Any], deque[Any]] = (deque(), deque())
        """Rows and events that wait for the disk: lines, and states of which lines are to be made."""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._files: list[RotatingFile] = []
        self._event_bytes = 0
        self._max_event_bytes = max_bytes
        self._snapshot_t = float("inf")
        self._state_bytes: deque[int] = deque()
        """Sizes of states that the thread wrote; the loop has not counted them yet."""
        self._hole = 0
        """Lines of events that were lost since the last one that stands in the file."""
        self._torn = False
        """Whether events were lost since the last snapshot."""
        self._anew = False
        """Whether the next snapshot does not follow from the events before it."""
        if directory is not None:
            events = directory / "events.jsonl"
            self._files = [
                RotatingFile(directory / "journal.jsonl", max_bytes, keep),
                RotatingFile(events, sys.maxsize, keep),  # a new one is begun where its snapshot is taken
            ]
            with contextlib.suppress(OSError):
                self._event_bytes = events.stat().st_size
            self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
            self._thread.start()

    @property
    def rows(self) -> Path | None:
        """The file that rows are written to; None: nothing is kept."""
        return self._files[ROWS].path if self._files else None

    def row(self, row: AnyRow) -> None:
        """Keep a row."""
        if self._files:
            self._put(ROWS, self._encode(row))

    def begin_events(self, t: float, line: dict[str, Any]) -> None:
        """Keep what a replay needs before the first event of a control that knows nothing yet: the settings."""
        if self._files:
            self._snapshot_t = t + SNAPSHOT_S
            self._put_event(self._encode(line))

    def begin_anew(self) -> None:
        """Control is another from the next event on, by no event: begin a file of events with what it knows."""
        self._event_bytes = self._max_event_bytes
        self._anew = True

    def event(self, event: AnyEvent) -> None:
        """Keep an event that control will be given next."""
        if not self._files:
            return
        line = self._encode(event)
        while self._state_bytes:
            self._count_state(self._state_bytes.popleft())
        full = self._event_bytes + len(line) >= self._max_event_bytes
        if full or event.t >= self._snapshot_t or (self._torn and not self.error):
            self._put_snapshot(event.t, new_file=full)
        pending = self._pending[EVENTS]
        if len(pending) < MAX_PENDING:  # `_put_event`, spelled out: this runs for each event
            self._event_bytes += len(line) + 1
            pending.append(line)
        else:
            self._put_event(line)

    def _count_state(self, size: int) -> None:
        self._event_bytes += size
        # a limit that state alone exceeds must not make a file of each event
        self._max_event_bytes = max(self._max_event_bytes, 2 * size)

    def _put_snapshot(self, t: float, *, new_file: bool) -> None:
        self._torn = False
        self._snapshot_t = t + SNAPSHOT_S
        if new_file:
            self._event_bytes = 0
        if self._anew:
            self._anew = False
            self._put(EVENTS, self._encode(LinesLost(0)))
        try:
            make = self.snapshot(t)
        except Exception:
            log.exception(NO_STATE)
            make = _unknown
        self._put(EVENTS, _State(make, new_file=new_file))

    def _put_event(self, line: bytes) -> None:
        self._event_bytes += len(line) + 1
        self._put(EVENTS, line)

    def _put(self, place: int, line: bytes | _State) -> None:
        pending = self._pending[place]
        if len(pending) >= MAX_PENDING:
            self._drop(place, 1)
        else:
            pending.append(line)

    def _drop(self, place: int, lines: int) -> None:
        self.dropped += lines
        if place != ROWS:
            self._hole += lines
            self._torn = True

    def _run(self) -> None:
        while not self._stop.wait(FLUSH_S):
            self.flush()
        self.flush()

    def flush(self) -> None:
        """Write what waits."""
        # the loop waits while this thread runs Python: whole batches are moved at once
        rows, events = ([pending.popleft() for _ in range(len(pending))] for pending in self._pending)
        failures = [self._write(place, batch) for place, batch in [(ROWS, rows), *self._batches(events)] if batch]
        if failures:
            self._note(next(filter(None, failures), ""))

    def _batches(self, events: list[Any]) -> list[tuple[int, list[bytes]]]:
        """Events by the file that they go to; where a state is to stand, its line."""
        batches: list[tuple[int, list[bytes]]] = [(EVENTS, [])]
        begin = 0
        for place in [place for place, line in enumerate(events) if type(line) is _State]:
            batches[-1][1].extend(events[begin:place])
            if events[place].new_file:
                batches.append((NEW_FILE, []))
            batches[-1][1].append(self._made(events[place]))
            begin = place + 1
        batches[-1][1].extend(events[begin:])
        return batches

    def _made(self, state: _State) -> bytes:
        """The line of a state."""
        try:
            line = self._encode(state.make(self._pause))
        except Exception:
            log.exception(NO_STATE)
            line = self._encode(LinesLost(0))
        self._state_bytes.append(len(line) + 1)
        return line

    def _pause(self) -> None:
        """Let the loop go on, unless the journal is being closed."""
        self._stop.wait(PAUSE_S)

    def _write(self, place: int, batch: list[bytes]) -> str:
        """Write some lines to their file; returns why they could not be."""
        file = self._files[min(place, EVENTS)]
        lost = self._hole if place != ROWS else 0
        try:
            if place == NEW_FILE:
                file.rotate()
            file.write(b"\n".join([self._encode(LinesLost(lost)), *batch] if lost else batch) + b"\n")
        except OSError as error:
            file.close()
            self._drop(place, len(batch))
            return f"{file.path}: {error.strerror or error}"
        self._hole -= lost
        return ""

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


def _unknown(pause: Callable[[], None]) -> LinesLost:
    """Stands for a state that cannot be had."""
    return LinesLost(0)


def utc_now() -> str:
    """The calendar time, ISO 8601 in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
