"""The committed schema is the model's, and the page tells of every check."""

from jsonschema import Draft202012Validator

from narwhal.documents import data_path, read_schema
from narwhal.preflight.document import NAMES
from narwhal.preflight.schemas import MODELS, main, render


def test_the_committed_schema_is_the_model_s() -> None:
    for name in MODELS:
        assert data_path("schemas", name, "v1.json").read_text() == render(name), "run `make schemas`"
        Draft202012Validator.check_schema(read_schema(name))
    assert main(["--check"]) == 0


def test_every_check_has_a_row_in_the_page_and_none_else() -> None:
    page = (data_path("schemas").parent / "docs" / "check.md").read_text()
    rows = [line.split("`")[1] for line in page.splitlines() if line.startswith("| `")]
    assert rows == list(NAMES)
