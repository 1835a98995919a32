"""What an argument names: folders of evidence at any depth, results of other tools, and what was left half done."""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from narwhal.measure import DOCUMENT, PARTIAL, SEARCH, EvidenceError
from narwhal.report.document import Unusable
from narwhal.report.errors import ReportError
from narwhal.report.others import KNOWN, ResultError, read_result
from narwhal.report.reading import read_point, read_search
from narwhal.report.taken import COUNTING, Run, Taken, names

_MOMENT = re.compile(r"\d{8}T\d{6}\.\d{3}Z")
"""How folders of measurements are called."""
_LEFT = "the measurement ended in the middle; narwhal bench measures it again, and this may be removed"


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """A run for each path. Raises `ReportError` for one that is not there, or in which nothing is to be found."""
    return [_read(path, name) for path, name in zip(paths, names(paths), strict=True)]


def _read(path: Path, name: str) -> Run:
    run = Run(name, path)
    if path.is_dir():
        for entry in _entries(path):
            _take(run, entry)
    elif path.is_file():
        _take_result(run, path, path.parent)
    else:
        raise ReportError("missing", f"{path}: no such file or folder", "name the folder of `narwhal bench --out`")
    if not run.taken and not run.unusable and not run.searches:
        hint = "name the folder of `narwhal bench --out`, or a result file (docs/report.md)"
        raise ReportError("empty", f"{path}: there is no evidence in it", hint)
    run.taken = _marked(sorted(run.taken, key=lambda one: (_natural(one.point.point), one.point.started_at)))
    return run


def _entries(root: Path) -> Iterator[Path]:
    """Folders and files below `root` that are evidence by their names; what is in them is not looked at again."""
    for parent, folders, files in os.walk(root):
        here = Path(parent)
        if _is_measurement(here) or here.name.endswith(PARTIAL):
            folders.clear()
            yield here
            continue
        folders[:] = sorted(one for one in folders if not one.startswith(".") or one.endswith(PARTIAL))
        yield from (here / one for one in sorted(files) if one.endswith(SEARCH) or one in KNOWN)


def _is_measurement(folder: Path) -> bool:
    return _MOMENT.fullmatch(folder.name) is not None or (folder / DOCUMENT).is_file()


def _take(run: Run, entry: Path) -> None:
    root = run.path if entry != run.path else entry.parent
    try:
        if entry.name.endswith(PARTIAL):
            run.unusable.append(
                Unusable(
                    path=str(entry.relative_to(root)),
                    state="partial",
                    reason=_LEFT,
                )
            )
        elif entry.is_dir():
            run.taken.append(read_point(entry, root))
        elif entry.name.endswith(SEARCH):
            run.searches.append(read_search(entry))
        else:
            _take_result(run, entry, root)
    except EvidenceError as error:
        run.unusable.append(Unusable(path=str(entry.relative_to(root)), state="unreadable", reason=str(error)))


def _take_result(run: Run, path: Path, root: Path) -> None:
    """The result file of another tool, or of the simulator."""
    try:
        run.taken += read_result(path, root)
    except ResultError as error:
        run.unusable.append(Unusable(path=str(path.relative_to(root)), state="unreadable", reason=str(error)))


def _natural(text: str) -> list[tuple[int, str]]:
    """A key that sorts `chat-4` before `chat-12`."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", text)]


def _marked(taken: list[Taken]) -> list[Taken]:
    """Points with those marked `older` of which a newer measurement counts. They come by name and time."""
    newest = {one.point.point: place for place, one in enumerate(taken) if one.point.standing in COUNTING}
    return [
        replace(one, point=one.point.model_copy(update={"standing": "older"}))
        if one.point.standing in COUNTING and newest[one.point.point] != place
        else one
        for place, one in enumerate(taken)
    ]
