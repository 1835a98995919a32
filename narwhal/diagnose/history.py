"""What a router wrote down, read back: from a journal's files, or from the router over its admin listener."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from narwhal.diagnose.client import AdminClient

Json = dict[str, Any]
JOURNAL_FILE = "journal.jsonl"
FIRST_PLACE = "0-0"
"""The place before the oldest row that is kept."""
_REQUEST = b'"type":"request"'


class HistoryError(Exception):
    """A journal that cannot be read; the message names file, line and reason."""


@dataclass(slots=True)
class Life:
    """One run of a router: what it wrote between two starts."""

    start: Json | None = None
    """Its `start` row; None: it is not kept any more."""
    decisions: list[Json] = field(default_factory=list)
    changes: list[Json] = field(default_factory=list)
    """Rows about engines and pairs, oldest first."""
    requests: list[Json] = field(default_factory=list)
    """Rows of requests that were asked for."""
    last_t: float = 0.0
    """Time of the latest row that was looked at."""

    def utc(self, t: float) -> str | None:
        """The calendar time of a moment of this life, to the second; None where its start is not known."""
        if self.start is None:
            return None
        begun = datetime.fromisoformat(self.start["utc"].replace("Z", "+00:00"))
        return (begun + timedelta(seconds=t - self.start["t"])).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(slots=True)
class History:
    """Rows of a journal by the life of the router that wrote them, oldest first; there is one at least."""

    lives: list[Life] = field(default_factory=lambda: [Life()])
    torn: int = 0
    """Lines that are no rows."""
    rows: int = 0

    @property
    def now(self) -> Life:
        """The latest life."""
        return self.lives[-1]

    def take(self, row: Json) -> None:
        """Add a row."""
        kind = row.get("type")
        self.rows += 1
        if kind == "start":
            self.lives.append(Life(row, last_t=row["t"]))
            return
        life = self.now
        if kind == "decision":
            life.decisions.append(row["decision"])
        elif kind in ("engine", "pair"):
            life.changes.append(row)
        elif kind == "request":
            life.requests.append(row)
        life.last_t = max(life.last_t, _time(row))


def _time(row: Json) -> float:
    kind = row.get("type")
    if kind == "decision":
        return float(row["decision"]["t"])
    return float(row["arrived_t"] + row["total_s"] if kind == "request" else row.get("t", 0.0))


def read_history(path: Path, request: str = "") -> History:
    """A journal from its folder or one of its files. `request`: id or number whose rows are wanted too.

    Of other requests only those at the end are looked at, for the time. Raises `HistoryError`.
    """
    files = journal_files(path)
    if not files:
        raise HistoryError(f"{path}: there is no {JOURNAL_FILE}")
    history, wanted, last = History(), _wanted(request), b""
    for file in files:
        for number, line in _lines(file):
            last = line
            if not wanted(line):
                continue
            try:
                history.take(msgspec.json.decode(line))
            except (msgspec.DecodeError, KeyError, TypeError, AttributeError) as error:
                history.torn += 1
                if history.torn == 1 and not history.rows:
                    raise HistoryError(f"{file}:{number}: not a row of a router's journal: {error}") from error
    _date(history, last)
    return history


def ask_history(client: AdminClient, request: str = "") -> History:
    """The same of a running router, as far as it keeps its journal. Raises what `AdminClient.journal` raises."""
    history, place, more = History(), FIRST_PLACE, True
    wanted = _of_request(request)
    while more:
        answer = client.journal(place)
        for row in answer["rows"]:
            if row.get("type") != "request" or wanted(row):
                history.take(row)
        more, place = answer["more"], answer["place"]
        history.now.last_t = max(history.now.last_t, answer["now_t"])
    return history


def journal_files(path: Path) -> list[Path]:
    """The files of a journal, oldest first: `path` is its folder, or a file that stands for itself."""
    if not path.is_dir():
        return [path] if path.exists() else []
    file = path / JOURNAL_FILE
    closed = [other for other in path.glob(f"{JOURNAL_FILE}.*") if other.suffix[1:].isdigit()]
    return [*sorted(closed, key=lambda other: -int(other.suffix[1:])), *([file] if file.exists() else [])]


def journal_of(client: AdminClient) -> Path | None:
    """The journal of a router that is reached by its Unix socket in its state directory; None: it is not to be seen."""
    socket = client.socket
    folder = socket.parent / "journal" if socket is not None else None
    return folder if folder is not None and (folder / JOURNAL_FILE).is_file() else None


def _lines(file: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.endswith(b"\n"):  # the last one may still be being written
                    yield number, line
    except OSError as error:
        raise HistoryError(f"{file}: cannot read it: {error.strerror or error}") from error


def _wanted(request: str) -> Callable[[bytes], bool]:
    """Whether a line is worth decoding: most are of requests that nobody asked for."""
    marks = [mark.encode() for mark in (f'"id":"{request}"', f'"request":{request},')] if request else []
    return lambda line: _REQUEST not in line or any(mark in line for mark in marks)


def _of_request(request: str) -> Callable[[Json], bool]:
    return lambda row: bool(request) and request in (row["id"], str(row["request"]))


def _date(history: History, last: bytes) -> None:
    """Let the last line tell how far the journal goes, whatever it is about."""
    try:
        row = msgspec.json.decode(last) if last else {}
        history.now.last_t = max(history.now.last_t, _time(row))
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
        return


def newest(lives: Iterable[Life], number: int) -> tuple[Life, Json] | None:
    """The decision of a number, in the latest life that has one."""
    for life in reversed(list(lives)):
        for decision in life.decisions:
            if decision["id"] == number:
                return life, decision
    return None
