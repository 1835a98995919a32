"""Generating the schema of what a preflight writes: `python -m narwhal.preflight.schemas [--check]`."""

import sys
from collections.abc import Sequence

from narwhal.documents import Document
from narwhal.documents.generate import render_schema, write_schemas
from narwhal.preflight.document import Preflight

MODELS: dict[str, type[Document]] = {"preflight": Preflight}
"""The documents whose schema is generated here."""


def render(name: str) -> str:
    """The text of a generated schema file."""
    return render_schema(name, MODELS[name])


def main(arguments: Sequence[str]) -> int:
    """Write the schemas, or with `--check` say which are out of date."""
    return write_schemas(MODELS, arguments, "python -m narwhal.preflight.schemas")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
