"""Opening a fleet file: everything wrong with it in one error, or everything that follows from it."""

from dataclasses import replace
from pathlib import Path

from narwhal.fleet.check import check_file
from narwhal.fleet.expand import expand
from narwhal.fleet.expanded import Expanded
from narwhal.fleet.finding import FleetError


def open_fleet(path: str | Path) -> Expanded:
    """Read, check and expand a fleet file; older versions are read as the current one.

    Raises `FleetError` with every finding, and `SourceError` when there is no one document to judge.
    """
    checked = check_file(str(path))
    if checked.fleet is None:
        raise FleetError(checked.findings)
    return replace(expand(checked.fleet), folder=Path(path).parent)
