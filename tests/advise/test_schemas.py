"""The committed schema of advice is the model's, and says what every key is."""

from jsonschema import Draft202012Validator

from narwhal.advise.schemas import main, render
from narwhal.documents import data_path, read_schema


def test_the_committed_schema_is_the_model_s() -> None:
    assert data_path("schemas", "advice", "v1.json").read_text() == render("advice"), "run `make schemas`"
    assert main(["--check"]) == 0


def test_it_documents_every_key() -> None:
    schema = read_schema("advice")
    Draft202012Validator.check_schema(schema)
    parts = {"advice": schema} | schema.get("$defs", {})
    keys = {f"{part}.{key}": field for part, node in parts.items() for key, field in node.get("properties", {}).items()}
    assert [key for key, field in keys.items() if not field.get("description")] == []
