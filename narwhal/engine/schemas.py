"""Generating the schemas of what an engine's host writes and reads: `python -m narwhal.engine.schemas [--check]`."""

import sys
from collections.abc import Sequence

from narwhal.documents import Document
from narwhal.documents.generate import render_schema, write_schemas
from narwhal.engine.attestation import Attestation
from narwhal.engine.record import EngineLaunch

MODELS: dict[str, type[Document]] = {"engine-launch": EngineLaunch, "attestation": Attestation}
"""The documents whose schema is generated here."""


def render(name: str) -> str:
    """The text of a generated schema file."""
    return render_schema(name, MODELS[name])


def main(arguments: Sequence[str]) -> int:
    """Write the schemas, or with `--check` say which are out of date."""
    return write_schemas(MODELS, arguments, "python -m narwhal.engine.schemas")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
