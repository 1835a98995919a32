"""Generating the schemas of what explains a router: `python -m narwhal.diagnose.schemas [--check]`."""

import sys
from collections.abc import Sequence

from narwhal.diagnose.document import Why
from narwhal.diagnose.manifest import DiagnosticBundle
from narwhal.documents import Model
from narwhal.documents.generate import render_schema, write_schemas

MODELS: dict[str, type[Model]] = {"diagnostic-bundle": DiagnosticBundle, "why": Why}
"""The documents whose schema is generated here."""


def render(name: str) -> str:
    """The text of a generated schema file."""
    return render_schema(name, MODELS[name])


def main(arguments: Sequence[str]) -> int:
    """Write the schemas, or with `--check` say which are out of date."""
    return write_schemas(MODELS, arguments, "python -m narwhal.diagnose.schemas")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
