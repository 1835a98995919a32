"""Reading the journal back: the rows that came after a place in it, for a caller that follows it over HTTP.

A place is the file's inode and an offset in it, so it stays right when the file is rotated and gets another name.
"""

import asyncio
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qs

import msgspec

from narwhal.router.http import Connection
from narwhal.router.incoming import Incoming
from narwhal.router.replies import error_body

READ_BYTES = 1 << 20
"""Rows are read in pieces of about this size; a caller asks again while there are more."""
_PLACE = re.compile(r"([0-9]{1,20})-([0-9]{1,20})")


class JournalRows(msgspec.Struct, frozen=True):
    """Rows that came after a place of the journal, oldest first."""

    apiVersion: Literal["narwhal/v1"]  # noqa: N815
    kind: Literal["JournalRows"]
    now_t: float
    """Present time on the router's clock, in seconds; times of the rows are on the same."""
    place: str
    """Where to read on: `after` of the next question."""
    more: bool
    """Whether there are further rows already."""
    rows: list[Any]
    """Lines of `journal.jsonl`."""


class PlaceError(ValueError):
    """A place that is none, or whose file is not kept any more."""


def rows_after(file: Path, after: str | None) -> tuple[list[msgspec.Raw], str, bool]:
    """Rows of a journal after a place, the next place, and whether there are more; None: its end, without rows.

    Raises `PlaceError` and `OSError`.
    """
    kept = _kept(file)
    if after is None:
        newest = os.stat(kept[-1]) if kept else None
        return [], f"{newest.st_ino}-{newest.st_size}" if newest else "0-0", False
    match = _PLACE.fullmatch(after)
    if match is None:
        raise PlaceError(f"{after!r} is no place in the journal; leave `after` out to get one")
    inode, offset = int(match[1]), int(match[2])
    if inode == 0:  # it was asked for before there was a journal
        return _read(kept, 0, 0) if kept else ([], after, False)
    for number, path in enumerate(kept):
        if os.stat(path).st_ino == inode:
            return _read(kept, number, offset)
    raise PlaceError("the file with that place is not kept any more (observability.journal.keep)")


def _kept(file: Path) -> list[Path]:
    """The files of a journal, oldest first."""
    older = [path for path in file.parent.glob(f"{file.name}.*") if path.suffix[1:].isdigit()]
    files = sorted(older, key=lambda path: -int(path.suffix[1:]))
    return [*files, file] if file.exists() else files


def _read(kept: list[Path], number: int, offset: int) -> tuple[list[msgspec.Raw], str, bool]:
    with kept[number].open("rb") as lines:
        state = os.fstat(lines.fileno())
        lines.seek(offset)
        data = lines.read(READ_BYTES) + lines.readline()
        rest = bool(lines.read(1))
    data = data[: data.rfind(b"\n") + 1]  # the last line may not be whole yet
    read_to, last = offset + len(data), number == len(kept) - 1
    rows = [msgspec.Raw(line) for line in data.splitlines()]
    if not rows and not last:
        return [], f"{os.stat(kept[number + 1]).st_ino}-0", True
    return rows, f"{state.st_ino}-{read_to}", rest or not last


def answer_rows(connection: Connection, request: Incoming, file: Path | None, now: Callable[[], float]) -> None:
    """Answer with rows, read by a thread so that no disk delays a token."""
    if file is None:
        connection.respond(404, error_body(404, "this router keeps no journal"))
        return
    after = parse_qs(request.query).get("after", [None])[0]
    loop = asyncio.get_running_loop()
    reading = loop.run_in_executor(None, rows_after, file, after)

    def answer(done: "asyncio.Future[tuple[list[msgspec.Raw], str, bool]]") -> None:
        error = done.exception()
        if isinstance(error, PlaceError):
            connection.respond(410, error_body(410, str(error)))
        elif error is not None:
            reason = error.strerror if isinstance(error, OSError) else type(error).__name__
            connection.respond(503, error_body(503, f"the journal cannot be read: {reason}"))
        else:
            rows, place, more = done.result()
            document = JournalRows("narwhal/v1", "JournalRows", now(), place, more, rows)
            connection.respond(200, msgspec.json.encode(document))

    reading.add_done_callback(answer)
