"""The committed schemas of evidence are the models', and say what every key is."""

import pytest
from jsonschema import Draft202012Validator

from narwhal.documents import data_path, read_schema
from narwhal.measure.schemas import MODELS, main, render


@pytest.mark.parametrize("name", MODELS)
def test_the_committed_schema_is_the_models(name: str) -> None:
    assert data_path("schemas", name, "v1.json").read_text() == render(name), "run `python -m narwhal.measure.schemas`"
    assert main(["--check"]) == 0


@pytest.mark.parametrize("name", MODELS)
def test_it_documents_every_key(name: str) -> None:
    schema = read_schema(name)
    Draft202012Validator.check_schema(schema)
    parts = {name: schema} | schema.get("$defs", {})
    keys = {f"{part}.{key}": field for part, node in parts.items() for key, field in node.get("properties", {}).items()}
    assert [key for key, field in keys.items() if not field.get("description")] == []
