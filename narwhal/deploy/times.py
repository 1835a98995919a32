"""Times in names and documents: UTC, so written that they sort."""

from datetime import UTC, datetime


def utc_now() -> str:
    """Now, to the millisecond: `2026-11-30T15:54:23.120Z`."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def as_name(moment: str) -> str:
    """A moment as the name of a folder: `20261130T155423.120Z`."""
    return moment.replace("-", "").replace(":", "")
