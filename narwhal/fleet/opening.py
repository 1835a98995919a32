"""Opening a fleet file: everything wrong with it in one error, or everything that follows from it."""

from pathlib import Path

from pydantic import ValidationError

from narwhal.fleet.expand import expand
from narwhal.fleet.expanded import Expanded
from narwhal.fleet.finding import FleetError
from narwhal.fleet.model import Fleet
from narwhal.fleet.source import read_source


def open_fleet(path: str | Path) -> Expanded:
    """Read, check and expand a fleet file.

    Raises `FleetError` with every finding, and `SourceError` when there is no one document to judge.
    """
    source = read_source(str(path))
    if source.findings:
        raise FleetError(source.findings)
    try:
        fleet = Fleet.model_validate(source.data)
    except ValidationError as error:
        raise FleetError(
            [
                source.finding("NW006", part["loc"], part["msg"], expected=part["type"], hint="see the schema")
                for part in error.errors()
            ]
        ) from None
    return expand(fleet)
