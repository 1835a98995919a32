"""Generating the schemas of benchmark evidence: `python -m narwhal.measure.schemas [--check]`."""

import sys
from collections.abc import Sequence

from narwhal.documents import Model
from narwhal.documents.generate import render_schema, write_schemas
from narwhal.measure.evidence import BenchEvidence, BenchRequest, BenchSample, BenchScrape, BenchSearch

MODELS: dict[str, type[Model]] = {
    "bench-evidence": BenchEvidence,
    "bench-request": BenchRequest,
    "bench-sample": BenchSample,
    "bench-scrape": BenchScrape,
    "bench-search": BenchSearch,
}
"""The documents, and the rows of files, whose schema is generated here."""


def render(name: str) -> str:
    """The text of a generated schema file."""
    return render_schema(name, MODELS[name])


def main(arguments: Sequence[str]) -> int:
    """Write the schemas, or with `--check` say which are out of date."""
    return write_schemas(MODELS, arguments, "python -m narwhal.measure.schemas")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
