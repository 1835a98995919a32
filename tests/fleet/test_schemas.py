"""The committed schemas are the models', and both accept the same documents."""

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from narwhal.documents import data_path, problems, read_schema
from narwhal.fleet import Fleet, check_text, profile_names
from narwhal.fleet.schemas import MODELS, main, render
from narwhal.fleet.shape import check_shape
from narwhal.fleet.source import Source, parse_source
from tests.fleet.fleets import BASE
from tests.fleet.strategies import fleets

GOOD: dict[str, Any] = parse_source(BASE, "f").data


@pytest.mark.parametrize("name", MODELS)
def test_the_committed_schema_is_the_models(name: str) -> None:
    assert data_path("schemas", name, "v1.json").read_text() == render(name), "run `python -m narwhal.fleet.schemas`"
    assert main(["--check"]) == 0


@pytest.mark.parametrize("name", [*MODELS, "command-result"])
def test_the_schema_is_one_and_documents_every_key(name: str) -> None:
    schema = read_schema(name)
    Draft202012Validator.check_schema(schema)
    parts = {name: schema} | schema.get("$defs", {})
    undocumented = [
        f"{part}.{key}"
        for part, node in parts.items()
        for key, field in node.get("properties", {}).items()
        if not field.get("description")
    ]
    assert undocumented == []
    assert all("title" not in node for node in schema["$defs"].values())


@pytest.mark.parametrize("name", profile_names())
def test_shipped_profiles_are_valid(name: str) -> None:
    document = json.loads(data_path("templates", "profiles", f"{name}.json").read_text())
    assert problems(document, "profile") == []
    assert document["name"] == name


def test_the_good_file_is_valid_by_the_schema() -> None:
    assert problems(GOOD, "fleet") == []


def model_accepts(document: Any) -> bool:
    """Whether the model has nothing against a document."""
    return not check_shape(Source("f", "", document), Fleet).findings


_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 70000),
    st.floats(-2, 100, allow_nan=False).filter(lambda x: not x.is_integer()),
    st.sampled_from(["", "x", "prefill", "file", "etcd", "venv", "A b", "gpu-1/0", "/a"]),
    st.just([]),
    st.just({}),
    st.dictionaries(st.sampled_from(["env", "file", "kind", "port", "x"]), st.sampled_from(["x", 1, None]), max_size=2),
)
"""What is put in place of a value; whole floats are left out: for JSON Schema 5.0 is an integer."""


def _paths(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [path, *(p for key, child in children for p in _paths(child, (*path, key)))]


@st.composite
def mutated(draw: st.DrawFn) -> Any:
    """A good fleet with up to three values replaced, keys deleted, or keys added."""
    document = copy.deepcopy(draw(st.one_of(st.just(GOOD), fleets())))
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from([p for p in _paths(document) if p]))
        parent = document
        for part in path[:-1]:
            parent = parent[part]
        action = draw(st.sampled_from(["replace", "delete", "add"]))
        if action == "delete":
            del parent[path[-1]]
        elif action == "add" and isinstance(parent, dict):
            parent[draw(st.sampled_from(["port", "pin", "gpus", "args", "x", "api_version", "enabled"]))] = draw(
                _VALUES
            )
        else:
            parent[path[-1]] = draw(_VALUES)
        if not document:
            break
    return document


@settings(deadline=None, max_examples=300)
@given(mutated())
def test_schema_and_model_accept_the_same_documents(document: Any) -> None:
    by_schema = problems(document, "fleet")
    assert model_accepts(document) == (not by_schema), by_schema[:3]


@pytest.mark.parametrize("name", ["laptop", "one-box", "two-racks"])
def test_examples_are_valid_by_the_schema(name: str) -> None:
    text = data_path("inventories", name, "fleet.yaml").read_text()
    assert problems(parse_source(text, name).data, "fleet") == []
    assert check_text(text).findings == ()
