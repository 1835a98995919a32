"""The JSON Schemas under `schemas/`: one file for each document and version."""

import json
from functools import cache
from typing import Any

from narwhal.documents.resources import data_path


def schema_names() -> list[str]:
    """Names of all shipped documents, sorted: `fleet`, `command-result`, …"""
    return sorted(path.name for path in data_path("schemas").iterdir() if path.is_dir())


@cache
def read_schema(name: str, version: str = "v1") -> dict[str, Any]:
    """The JSON Schema of a document. Raises `FileNotFoundError` when there is none of that name."""
    schema: dict[str, Any] = json.loads(data_path("schemas", name, f"{version}.json").read_text())
    return schema


def problems(document: object, name: str, version: str = "v1") -> list[str]:
    """What is wrong with `document` by its schema, one sentence each; empty when it is valid."""
    from jsonschema import Draft202012Validator  # heavy, and only needed where documents are checked

    validator = Draft202012Validator(read_schema(name, version))
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(document)]
