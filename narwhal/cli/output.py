"""What every verb prints: text for people, or exactly one `CommandResult` document; and the exit codes."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

STATUSES: Mapping[str, int] = {
    "success": 0,
    "findings": 1,
    "unusable": 2,
    "degraded": 3,
    "failed": 4,
    "interrupted": 130,
}
"""Exit code of each status. `findings`: problems found, or a gate failed. `unusable`: bad input or usage.
`degraded`: it works, but not fully. `failed`: the operation failed. `interrupted`: Ctrl-C."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: a stable code, a sentence, where it stands, and what to do."""

    code: str
    message: str
    file: str | None = None
    line: int | None = None
    column: int | None = None
    field: str | None = None
    hint: str | None = None


@dataclass(slots=True)
class Result:
    """What a verb did. A verb returns one; `verb` turns it into output and exit code."""

    status: str = "success"
    data: Mapping[str, Any] = field(default_factory=dict)
    artifacts: Sequence[str] = ()
    errors: Sequence[Problem] = ()
    text: str | None = None
    """What people read on stdout; None: nothing, or the verb printed it as it went."""


class CommandError(Exception):
    """Ends a verb with a status other than success; every error a user can cause is one of these."""

    def __init__(self, *errors: Problem, status: str = "unusable", data: Mapping[str, Any] | None = None) -> None:
        super().__init__("; ".join(error.message for error in errors))
        self.result = Result(status=status, errors=errors, data=data or {})


def document(command: str, result: Result) -> dict[str, Any]:
    """The `CommandResult` document of a result (schema: `schemas/command-result/v1.json`)."""
    return {
        "apiVersion": "narwhal/v1",
        "kind": "CommandResult",
        "command": command,
        "status": result.status,
        "exit_code": STATUSES[result.status],
        "data": dict(result.data),
        "artifacts": list(result.artifacts),
        "errors": [asdict(error) for error in result.errors],
    }


def show(command: str, result: Result, *, as_json: bool, quiet: bool, color: bool) -> int:
    """Print `result` and return its exit code. Errors go to stderr in text, one line each, then their hint."""
    if as_json:
        sys.stdout.write(json.dumps(document(command, result), indent=2, ensure_ascii=False, default=str) + "\n")
        return STATUSES[result.status]
    if result.text and not (quiet and result.status == "success"):
        sys.stdout.write(result.text if result.text.endswith("\n") else result.text + "\n")
    for error in result.errors:
        sys.stderr.write(_line(error, color) + "\n")
    return STATUSES[result.status]


def _line(error: Problem, color: bool) -> str:
    place = ":".join(str(part) for part in (error.file, error.line, error.column) if part is not None)
    head = "\x1b[31merror\x1b[0m" if color else "error"
    text = f"{head}[{error.code}]: " + (f"{place}: " if place else "") + error.message
    return text + (f"\n  hint: {error.hint}" if error.hint else "")
