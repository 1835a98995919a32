"""Generating JSON Schemas from the models of documents.

The files under `schemas/` are what editors and other tools read. They are generated, committed, and compared by a
test, so that model and schema cannot drift apart.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from narwhal.documents.files import write_atomically
from narwhal.documents.model import Document, Model
from narwhal.documents.resources import data_path

BASE = "urn:narwhal:schema"


def schema_of(name: str, model: type[Model]) -> dict[str, Any]:
    """The JSON Schema (2020-12) of the document `name`, or of a row of a file of rows."""
    schema: dict[str, Any] = _clean(model.model_json_schema(by_alias=True, mode="validation"))
    required = schema.pop("required")
    if issubclass(model, Document):
        required = ["apiVersion", *required]  # a document says its version, though code need not
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"{BASE}:{name}:v1",
        "title": model.__name__,
    }
    return head | schema | {"required": list(dict.fromkeys(required))}


def render_schema(name: str, model: type[Model]) -> str:
    """The text of a generated schema file."""
    return json.dumps(schema_of(name, model), indent=2, ensure_ascii=False) + "\n"


def _clean(node: Any, *, names: bool = False) -> Any:
    """A schema without what only makes noise in an editor; `names`: the keys are names, not keywords."""
    if isinstance(node, list):
        return [_clean(item) for item in node]
    if not isinstance(node, dict):
        return node
    cleaned = {
        key: value
        if key in ("default", "examples", "const", "enum") and not names
        else _clean(value, names=_names(key, names))
        for key, value in node.items()
        if names or key not in ("title", "discriminator")
    }
    if "patternProperties" in cleaned and not names:
        cleaned["additionalProperties"] = False
    return _merge_types(cleaned)


def _names(key: str, names: bool) -> bool:
    return not names and key in ("properties", "$defs", "patternProperties")


def _merge_types(node: dict[str, Any]) -> dict[str, Any]:
    """`anyOf` of bare types as one list of types, which editors show in one line."""
    options = node.get("anyOf")
    if isinstance(options, list) and all(isinstance(o, dict) and set(o) == {"type"} for o in options):
        return {"type": [o["type"] for o in options]} | {k: v for k, v in node.items() if k != "anyOf"}
    return node


def write_schemas(models: Mapping[str, type[Model]], arguments: Sequence[str], command: str) -> int:
    """Write the schemas of `models`, or with `--check` say which are out of date; returns the exit code."""
    root = data_path("schemas")
    stale = []
    for name, model in models.items():
        path = root / name / "v1.json"
        text = render_schema(name, model)
        if path.is_file() and path.read_text() == text:
            continue
        stale.append(name)
        if "--check" not in arguments:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, text)
    if stale and "--check" in arguments:
        sys.stderr.write(f"out of date: {', '.join(stale)}; run `{command}`\n")
        return 1
    return 0
