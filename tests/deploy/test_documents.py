"""The committed schemas of the gates' documents are the models'."""

import pytest
from jsonschema import Draft202012Validator

from narwhal.deploy.gates import GATES
from narwhal.deploy.schemas import MODELS, main, render
from narwhal.documents import data_path, read_schema


@pytest.mark.parametrize("name", MODELS)
def test_the_committed_schema_is_the_models(name: str) -> None:
    assert data_path("schemas", name, "v1.json").read_text() == render(name), "run `make schemas`"
    Draft202012Validator.check_schema(read_schema(name))
    assert main(["--check"]) == 0


def test_the_page_has_every_gate_with_what_it_asks() -> None:
    page = (data_path("schemas").parent / "docs" / "deploy.md").read_text()
    rows = [tuple(cell.strip() for cell in line.split("|")[1:3]) for line in page.splitlines() if line[:4] in _ROWS]
    assert rows == [(gate.title, gate.asks) for gate in GATES]


_ROWS = {f"| {gate.letter} " for gate in GATES}
