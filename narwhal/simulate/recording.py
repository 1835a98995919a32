"""Reading what a router wrote down: `events.jsonl` and `journal.jsonl`, and the closed files that rotation keeps.

Each start of a router begins with a line `Settings`; a `Snapshot` of control's state stands at the head of each file
and each minute. A recording begins with the last start, or, where rotation has taken that away, in the middle: with
the oldest snapshot. The files are read line by line; they may be larger than memory.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from narwhal.control import Control, Settings
from narwhal.control.commands import Decided
from narwhal.control.events import AnyEvent, RequestArrived
from narwhal.control.records import Decision
from narwhal.control.snapshot import LinesLost, Snapshot, restore
from narwhal.simulate.traces import why_unreadable

EVENTS_FILE, JOURNAL_FILE = "events.jsonl", "journal.jsonl"

Step = AnyEvent | Snapshot | LinesLost


class ReplayError(ValueError):
    """A journal that cannot be replayed; the message begins with `file:line:`."""


class _Kind(msgspec.Struct):
    """The type of a line, whatever else stands in it."""

    type: str


class _Row(msgspec.Struct):
    """A row of `journal.jsonl`, as far as it matters here."""

    type: str
    decision: Any = None


_KIND = msgspec.json.Decoder(_Kind)
_ROW = msgspec.json.Decoder(_Row)
_STEP = msgspec.json.Decoder(AnyEvent | Snapshot | LinesLost)
_DECIDED = msgspec.json.Decoder(Decided)
_STEP_NAMES = {kind.__name__ for kind in (*AnyEvent.__args__, Snapshot, LinesLost)}


@dataclass(frozen=True, slots=True)
class Recording:
    """What a router wrote down, from where it can be replayed."""

    files: tuple[Path, ...]
    """Files of events, oldest first."""
    begins: tuple[int, int]
    """File and line of the settings or the snapshot that it begins with."""
    settings: Settings
    snapshot: Snapshot | None
    """The state it begins with; None: it begins with a start of the router, which knew nothing."""
    decisions: tuple[Decision, ...]
    """Recorded decisions of that start, oldest first."""

    @property
    def place(self) -> str:
        """Where it begins, as `file:line`."""
        return f"{self.files[self.begins[0]]}:{self.begins[1]}"

    def control(self) -> Control:
        """A control as the router's was there. Raises `ReplayError`."""
        return Control(self.settings) if self.snapshot is None else restored(self.snapshot, self.place)

    def steps(self) -> Iterator[tuple[str, Step]]:
        """What follows, each with its place: events, further snapshots, and holes. Raises `ReplayError`."""
        first, begin = self.begins
        for path in self.files[first:]:
            for number, line in _lines(path):
                if path is self.files[first] and number <= begin:
                    continue
                place = f"{path}:{number}"
                if _kind(line, place) in _STEP_NAMES:
                    yield place, _decode(line, place)


def restored(snapshot: Snapshot, place: str) -> Control:
    """The control of a snapshot. Raises `ReplayError`."""
    try:
        return restore(Settings.read(snapshot.settings), snapshot.state)
    except (KeyError, ValueError) as error:
        raise ReplayError(f"{place}: the snapshot, of narwhal {snapshot.version}, cannot be read: {error}") from error


def read_recording(path: Path) -> Recording:
    """The last start of a router in one file of events, or in all of a journal's directory. Raises `ReplayError`."""
    if path.is_dir() or path.name == JOURNAL_FILE:
        folder = path if path.is_dir() else path.parent
        files = ring(folder / EVENTS_FILE)
    else:
        folder, files = path.parent, (path,)
    head = _head(files)
    if head is None:
        raise ReplayError(f"{files[0]}:1: neither settings nor a snapshot in it; is it a router's {EVENTS_FILE}?")
    file, number, line, own = head
    place = f"{files[file]}:{number}"
    snapshot: Snapshot | None = None
    try:
        if _kind(line, place) == "Settings":
            settings = Settings.read(msgspec.json.decode(line))
        else:
            snapshot = msgspec.json.decode(line, type=Snapshot)
            settings = Settings.read(snapshot.settings)
    except (KeyError, TypeError, ValueError) as error:
        raise ReplayError(f"{place}: cannot be replayed: {error}") from error
    decisions = own or _journalled(ring(folder / JOURNAL_FILE))
    return Recording(files, (file, number), settings, snapshot, tuple(decisions))


def steps_around(
    folder: Path, request: int, arrived_t: float | None
) -> tuple[Control, Iterator[AnyEvent | None]] | None:
    """Control as it was shortly before a request arrived, and the events from there on; None stands for lost ones.

    Its number may have been given by several starts: with `arrived_t` the one that arrived then is meant, else the
    latest. None: its arrival is not kept. Raises `ReplayError`.
    """
    files = tuple(file for file in ring(folder / EVENTS_FILE) if file.is_file())
    head: tuple[int, int, str] | None = None
    found: tuple[int, int, str] | None = None
    mark = f'"request":{request},'
    for number, path in enumerate(files):
        for row, line in _lines(path):
            if line.startswith(('{"type":"Snapshot"', '{"type":"Settings"')):
                head = number, row, line
            elif line.startswith('{"type":"LinesLost"'):
                head = None
            elif head and mark in line and line.startswith('{"type":"RequestArrived"'):
                event = _decode(line, f"{path}:{row}")
                if isinstance(event, RequestArrived) and event.request == request and _at(event, arrived_t):
                    found = head
    if found is None:
        return None
    file, row, line = found
    place = f"{files[file]}:{row}"
    if _kind(line, place) == "Settings":
        settings, snapshot = Settings.read(msgspec.json.decode(line)), None
    else:
        snapshot = msgspec.json.decode(line, type=Snapshot)
        settings = Settings.read(snapshot.settings)
    recording = Recording(files, (file, row), settings, snapshot, ())
    return recording.control(), _until_start(recording)


def _at(event: RequestArrived, arrived_t: float | None) -> bool:
    began_t = event.started_t if 0 <= event.started_t <= event.t else event.t
    return arrived_t is None or abs(began_t - arrived_t) < 1e-6


def _until_start(recording: Recording) -> Iterator[AnyEvent | None]:
    """The events of one start; None where some were lost. Further snapshots hold what is known already."""
    for _, step in recording.steps():
        if isinstance(step, LinesLost):
            yield None
        elif not isinstance(step, Snapshot):
            yield step


def ring(path: Path) -> tuple[Path, ...]:
    """A file and the closed ones beside it, oldest first."""
    closed = [other for other in path.parent.glob(f"{path.name}.*") if other.suffix[1:].isdigit()]
    return (*sorted(closed, key=lambda other: -int(other.suffix[1:])), path)


def _head(files: tuple[Path, ...]) -> tuple[int, int, str, list[Decision]] | None:
    """File, number and text of the line that a replay begins with, and decisions that stand among the events."""
    head: tuple[int, int, str] | None = None
    decisions: list[Decision] = []
    for file, path in enumerate(files):
        for number, line in _lines(path):
            kind = _kind(line, f"{path}:{number}")
            if kind == "Settings" or (kind == "Snapshot" and head is None):
                head, decisions = (file, number, line), []
            elif kind == "Decided":
                decisions.append(_decided(line, f"{path}:{number}"))
    return (*head, decisions) if head is not None else None


def _journalled(files: tuple[Path, ...]) -> list[Decision]:
    """Decisions in the rows of a journal since the last start of the router."""
    decisions: list[Decision] = []
    for path in files:
        if not path.is_file():
            continue
        for number, line in _lines(path):
            try:
                row = _ROW.decode(line)
                if row.type == "start":
                    decisions = []
                elif row.type == "decision":
                    decisions.append(msgspec.convert(row.decision, Decision))
            except ValueError as error:
                raise ReplayError(f"{path}:{number}: not a row of a journal: {error}") from error
    return decisions


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, line
    except (OSError, UnicodeDecodeError) as error:
        raise ReplayError(f"{path}: cannot read it: {why_unreadable(error)}") from error


def _kind(line: str, place: str) -> str:
    try:
        return _KIND.decode(line).type
    except ValueError as error:
        raise ReplayError(f"{place}: cannot be replayed: {error}") from error


def _decode(line: str, place: str) -> Step:
    try:
        step: Step = _STEP.decode(line)
    except ValueError as error:
        raise ReplayError(f"{place}: cannot be replayed: {error}") from error
    return step


def _decided(line: str, place: str) -> Decision:
    try:
        return _DECIDED.decode(line).decision
    except ValueError as error:
        raise ReplayError(f"{place}: cannot be replayed: {error}") from error
