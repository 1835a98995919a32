"""The committed schemas of the gates' documents are the models'."""

import pytest
from jsonschema import Draft202012Validator

from narwhal.deploy.schemas import MODELS, main, render
from narwhal.documents import data_path, read_schema


@pytest.mark.parametrize("name", MODELS)
def test_the_committed_schema_is_the_models(name: str) -> None:
    assert data_path("schemas", name, "v1.json").read_text() == render(name), "run `make schemas`"
    Draft202012Validator.check_schema(read_schema(name))
    assert main(["--check"]) == 0
