"""`narwhal migrate`."""

from pathlib import Path
from typing import Annotated

import typer

from narwhal.cli.app import progress, verb
from narwhal.cli.output import CommandError, Problem, Result
from narwhal.cli.validate import source_problem


@verb("migrate")
def migrate(
    file: Annotated[str, typer.Argument(help="Fleet file of an older version, or - for stdin.")],
    write: Annotated[bool, typer.Option("--write", help="Rewrite the file itself.")] = False,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write to this file.")] = None,
) -> Result:
    """Rewrite a fleet file as the current version; comments stay.

    Prints the result, unless --write or -o says where it goes.

    Example: narwhal migrate fleet.yaml --write
    """
    from narwhal.documents import write_atomically
    from narwhal.fleet import SourceError, migrate_source, read_source

    target = Path(file) if write else output
    if write and (output is not None or file == "-"):
        raise CommandError(Problem("usage", "--write is for one file, in its place", hint="leave out -o and -"))
    try:
        migrated = migrate_source(read_source(file))
    except SourceError as error:
        raise CommandError(source_problem(error)) from None
    for change in migrated.changes or ["nothing to change"]:
        progress().say(change)
    data = {"from": migrated.version, "changes": list(migrated.changes)}
    if target is None:
        return Result(data=data | {"text": migrated.text}, text=migrated.text)
    if migrated.changes or not write:
        try:
            write_atomically(target, migrated.text)
        except OSError as error:
            hint = "check that its folder exists and may be written to"
            problem = Problem("write", f"cannot be written: {error.strerror}", file=str(target), hint=hint)
            raise CommandError(problem, status="failed") from None
    return Result(data=data, artifacts=[str(target)])
