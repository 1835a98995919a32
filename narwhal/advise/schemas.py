"""Generating the schema of advice: `python -m narwhal.advise.schemas [--check]`."""

import sys
from collections.abc import Sequence

from narwhal.advise.document import Advice
from narwhal.documents import Model
from narwhal.documents.generate import render_schema, write_schemas

MODELS: dict[str, type[Model]] = {"advice": Advice}
"""The documents whose schema is generated here."""


def render(name: str) -> str:
    """The text of a generated schema file."""
    return render_schema(name, MODELS[name])


def main(arguments: Sequence[str]) -> int:
    """Write the schemas, or with `--check` say which are out of date."""
    return write_schemas(MODELS, arguments, "python -m narwhal.advise.schemas")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
