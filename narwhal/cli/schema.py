"""`narwhal schema`."""

import json
from typing import Annotated

import typer

from narwhal.cli.app import progress, verb
from narwhal.cli.output import CommandError, Problem, Result


@verb("schema")
def schema(
    name: Annotated[str | None, typer.Argument(help="Document: fleet, profile, …; without it, all are listed.")] = None,
) -> Result:
    """Print the JSON Schema of a document, or list the documents.

    Example: narwhal schema fleet > fleet.schema.json
    """
    from narwhal.documents import data_path, read_schema, schema_names

    names = schema_names()
    if name is None:
        return Result(data={"schemas": names}, text="\n".join(names))
    if name not in names:
        raise CommandError(Problem("unknown-schema", f"there is no schema {name!r}", hint=f"one of {', '.join(names)}"))
    path = data_path("schemas", name, "v1.json")
    if not progress().as_json:
        progress().say(f"for editors, as the file's first line: # yaml-language-server: $schema={path}")
    found = read_schema(name)
    return Result(data={"schema": found, "path": str(path)}, text=json.dumps(found, indent=2, ensure_ascii=False))
