"""Generating the schemas of what the gates write: `python -m narwhal.deploy.schemas [--check]`."""

import sys
from collections.abc import Sequence

from narwhal.deploy.bundle import Bundle
from narwhal.deploy.evidence import GateEvidence
from narwhal.deploy.frozen import FrozenInputs
from narwhal.deploy.manifest import RenderManifest
from narwhal.documents import Document
from narwhal.documents.generate import render_schema, write_schemas

MODELS: dict[str, type[Document]] = {
    "bundle": Bundle,
    "frozen-inputs": FrozenInputs,
    "gate-evidence": GateEvidence,
    "render-manifest": RenderManifest,
}
"""The documents whose schema is generated here."""


def render(name: str) -> str:
    """The text of a generated schema file."""
    return render_schema(name, MODELS[name])


def main(arguments: Sequence[str]) -> int:
    """Write the schemas, or with `--check` say which are out of date."""
    return write_schemas(MODELS, arguments, "python -m narwhal.deploy.schemas")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
