"""What the router writes and answers is what its schemas and its documentation say."""

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from prometheus_client.parser import text_string_to_metric_families

from narwhal.documents import data_path, problems, read_schema
from narwhal.router.schemas import TITLES, render
from tests.router.harness import FakeEngine, Router, eventually, post, read_until, routing

DOCS = Path(__file__).parents[2] / "docs" / "reference"


@pytest.mark.parametrize("name", TITLES)
def test_the_committed_schema_is_the_structs(name: str) -> None:
    assert data_path("schemas", name, "v1.json").read_text() == render(name), "run `python -m narwhal.router.schemas`"


@pytest.mark.parametrize("name", [*TITLES, "router-state"])
def test_the_schema_is_one(name: str) -> None:
    Draft202012Validator.check_schema(read_schema(name))


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Router]:
    """A router that has served, refused, cut and moved."""
    engines = [FakeEngine() for _ in range(4)]
    with routing(tmp_path_factory.mktemp("used"), engines) as router:
        send = router.send
        for stream in (True, False):
            assert send("POST", "/v1/completions", {"prompt": "x", "max_tokens": 3, "stream": stream})[0] == 200
        for engine in engines:
            engine.leg_2 = lambda asked, sock: sock.shutdown(socket.SHUT_RDWR)
            engine.whole = engine.leg_2
        assert send("POST", "/v1/completions", {"prompt": "x", "max_tokens": 3})[0] == 502
        swap = {"a": "local/0", "b": "local/3"}
        assert send("POST", "/narwhal/hold", {"reason": "a test"}, admin=True)[0] == 200
        assert send("POST", "/narwhal/swap", swap, admin=True)[0] == 409
        assert send("POST", "/narwhal/unhold", {}, admin=True)[0] == 200
        assert send("POST", "/narwhal/reload", {}, admin=True)[0] == 200
        with router.connect() as sock:
            sock.sendall(post({"prompt": "x", "max_tokens": 3, "n": 2}))
            read_until(sock, b"}}")
        eventually(lambda: len(router.rows("request")) == 4, "the rows")
        yield router
    for engine in engines:
        engine.close()


def answer(router: Router, path: str) -> Any:
    return json.loads(router.send("GET", path, admin=True)[2])


def lines(router: Router, name: str) -> list[Any]:
    text = (router.state_dir / "journal" / name).read_text()
    return [json.loads(line) for line in text[: text.rfind("\n")].split("\n")]


def test_state_and_decisions_are_what_their_schemas_say(used: Router) -> None:
    assert problems(answer(used, "/narwhal/state"), "router-state") == []
    held = answer(used, "/narwhal/decisions?held=1")
    assert held["decisions"]
    assert {decision["outcome"] for decision in held["decisions"]} == {"held"}
    for document, schema in (("/narwhal/links", "links"), ("/narwhal/changes", "changes")):
        assert problems(answer(used, document), schema) == []
    assert [row for row in answer(used, "/narwhal/links")["links"] if row["handoffs"]]
    assert answer(used, "/narwhal/changes")["changes"]
    end = answer(used, "/narwhal/journal")
    assert (end["rows"], end["more"]) == ([], False)
    rows = answer(used, "/narwhal/journal?after=0-0")  # as if asked before the first row
    assert [row["type"] for row in rows["rows"]].count("request") == 4
    assert rows["place"] == end["place"]
    assert problems(rows, "journal-rows") == []
    assert used.send("GET", "/narwhal/journal?after=1-1", admin=True)[0] == 410
    for document in (held, answer(used, "/narwhal/moves"), answer(used, "/narwhal/decisions")):
        assert problems(document, "moves") == []
        assert all(document["now_t"] >= d["t"] for d in document.get("moves", []) + document.get("decisions", []))


@pytest.mark.parametrize(("file", "schema"), [("journal.jsonl", "journal"), ("events.jsonl", "events")])
def test_each_line_is_what_its_schema_says(used: Router, file: str, schema: str) -> None:
    found = lines(used, file)
    validator = Draft202012Validator(read_schema(schema))
    assert [f"{line}: {error.message}" for line in found for error in validator.iter_errors(line)] == []
    first = {"journal.jsonl": "start", "events.jsonl": "Settings"}[file]
    assert found[0]["type"] == first
    assert len({line["type"] for line in found}) > 3


def test_the_catalogue_of_metrics_is_what_is_exported(used: Router) -> None:
    assert used.send("POST", "/v1/completions", b"x" * 70_000)[0] == 413  # something that is refused unread
    page = used.send("GET", "/metrics", admin=True)[2].decode()
    exported = {
        (family.name + "_total" * (family.type == "counter"), family.type): {
            label for sample in family.samples for label in sample.labels if label != "le"
        }
        for family in text_string_to_metric_families(page)
        if family.name.startswith("narwhal_")
    }
    row = re.compile(r"^\| `(narwhal_\w+)(?:\{([\w,]*)\})?` \| (\w+) \|", re.MULTILINE)
    found = row.findall((DOCS / "metrics.md").read_text())
    documented = {(name, kind): set(labels.split(",")) - {""} for name, labels, kind in found}
    assert set(documented) == set(exported)
    assert len(found) == len(documented)
    without_samples = {("narwhal_load_ratio", "gauge")}  # no controller, no TLS and no tenants here
    others = ("narwhal_tls_", "narwhal_tenant_", "narwhal_worker_", "narwhal_link_info", "narwhal_split_score")
    without_samples |= {key for key in documented if key[0].startswith(others)}
    without_samples.add(("narwhal_gate_open", "gauge"))
    without_samples.add(("narwhal_denied_total", "counter"))
    without_samples.add(("narwhal_role_map_writes_total", "counter"))  # it is alone
    without_samples.add(("narwhal_state_writes_total", "counter"))  # and keeps nothing
    without_samples.add(("narwhal_tries_total", "counter"))  # no engine is in question here
    for key in set(documented) - without_samples:
        assert documented[key] == exported[key], key


def test_the_page_on_the_journal_names_every_column(used: Router) -> None:
    named = set(re.findall(r"`(\w+)`", (DOCS / "journal.md").read_text()))
    for row in lines(used, "journal.jsonl"):
        assert set(row) <= named, row["type"]
