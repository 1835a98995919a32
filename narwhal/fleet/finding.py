"""What is wrong with a fleet file: one finding for each thing, with its place and its cure."""

from collections.abc import Sequence
from dataclasses import dataclass

Path = tuple[str | int, ...]
"""Where a value stands in a document: keys and list indices from the root."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One mistake. `id` is stable (`NW012`); the catalogue in `narwhal.fleet.rules` explains it."""

    id: str
    message: str
    """What is wrong, in one sentence, the value included."""
    file: str
    line: int
    """1-based."""
    column: int
    """1-based."""
    field: str
    """Where in the document, as `hosts[0].ssh.port`; empty for the whole."""
    value: object
    """The value that is wrong; None when something is missing."""
    expected: str
    hint: str
    """How to fix it."""


class FleetError(Exception):
    """A fleet file that cannot be used; `findings` says everything that is wrong with it."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        super().__init__("\n".join(f"{f.file}:{f.line}:{f.column}: {f.id}: {f.message} ({f.hint})" for f in findings))
        self.findings = tuple(findings)


class SourceError(Exception):
    """A file that is not a YAML document at all: missing, a directory, binary, empty, or several documents."""

    def __init__(self, code: str, message: str, file: str, hint: str, line: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.file = file
        self.hint = hint
        self.line = line


def dotted(path: Path) -> str:
    """A path as people write it: `hosts[0].ssh.port`, `engines.overrides["gpu-1/0"].pin`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part.replace("_", "").replace("-", "").isalnum():
            text += f".{part}" if text else part
        else:
            text += f'["{part}"]'
    return text
