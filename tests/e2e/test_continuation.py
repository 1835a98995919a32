"""Streams whose engine fails go on on another, on the same connection: nothing is lost, told twice, or out of place."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from tests.e2e.routers import Fleet, fleet_of
from tests.router.harness import eventually

pytestmark = pytest.mark.e2e
OPTIONS: dict[str, Any] = {
    "speed": 20.0,
    "recovery": "eject_after: 1000, readmit_after: 1, probe_interval_s: 0.5",
    "serving": "admission: open, continuation: {max_per_request: 5}",
}
PROMPT = "où est la mer, dit le poisson"
SECRET = "poisson"
DECODE = (2, 3)
"""Places of the decode engines."""
ASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "completion": ("/v1/completions", {"prompt": PROMPT, "max_tokens": 24}),
    "chat": (
        "/v1/chat/completions",
        {"messages": [{"role": "system", "content": PROMPT}, {"role": "user", "content": "hm"}], "max_tokens": 24},
    ),
}
MORE = {"stream": True, "temperature": 0, "stream_options": {"include_usage": True}}


@pytest.fixture(scope="module", params=[1, 3], ids=["single", "merged"])
def fleet(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    interval = f"\n  args: {{stream-interval: {request.param}}}"
    with fleet_of(tmp_path_factory.mktemp("continuation"), 4, engine_more=interval, **OPTIONS) as running:
        yield running


def fault(fleet: Fleet, engine: int, document: dict[str, Any] | None) -> None:
    """Let an engine have a fault; None: none any more."""
    url = f"{fleet.expanded.engines[engine].url}/simulate/faults"
    data = None if document is None else json.dumps(document).encode()
    kind = {"content-type": "application/json"}
    with urlopen(Request(url, data, kind, method="DELETE" if data is None else "POST"), timeout=60) as response:
        assert response.status == 200


def ask(fleet: Fleet, path: str, body: dict[str, Any], **headers: str) -> list[Any]:
    """The events of a stream, [DONE] as text; the last must end it."""
    connection = HTTPConnection("127.0.0.1", fleet.router.port, timeout=60)
    try:
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json", **headers})
        response = connection.getresponse()
        content = response.read().decode()
        assert response.status == 200, content
    finally:
        connection.close()
    texts = [text.removeprefix("data: ") for text in content.split("\n\n") if text]
    return [text if text == "[DONE]" else json.loads(text) for text in texts]


def told(events: list[Any]) -> dict[str, Any]:
    """What a client understands of a stream."""
    documents = [event for event in events if isinstance(event, dict)]
    choices = [choice for document in documents for choice in document.get("choices", ())]
    deltas = [choice["delta"] for choice in choices if "delta" in choice]
    return {
        "text": "".join(delta.get("content") or "" for delta in deltas)
        or "".join(choice.get("text", "") for choice in choices),
        "roles": [delta["role"] for delta in deltas if "role" in delta],
        "finish": [choice["finish_reason"] for choice in choices if choice["finish_reason"]],
        "usage": [document["usage"] for document in documents if document.get("usage")],
        "ids": len({document["id"] for document in documents if "id" in document}),
        "created": len({document["created"] for document in documents if "created" in document}),
        "errors": [document["error"] for document in documents if "error" in document],
        "done": events[-1] == "[DONE]",
    }


def released(fleet: Fleet) -> bool:
    """Whether no engine is charged with anything, those that others may use included."""
    return all(engine["residents"] == engine["prefills"] == 0 for engine in fleet.router.state()["engines"])


def metrics(fleet: Fleet) -> str:
    return fleet.router.send("GET", "/metrics", admin=True)[2].decode()


def rows(fleet: Fleet, count: int) -> list[Any]:
    eventually(lambda: len(fleet.router.rows("request")) >= count, "the rows")
    return fleet.router.rows("request")


@pytest.mark.parametrize("kind", ASKS)
def test_a_stream_that_is_cut_after_any_token_is_told_whole(fleet: Fleet, kind: str) -> None:
    path, body = ASKS[kind]
    before = len(fleet.router.rows("request"))
    whole = told(ask(fleet, path, {**body, **MORE}))
    assert whole["done"]
    assert whole["usage"][0]["completion_tokens"] == 24
    assert any(ord(letter) > 127 for letter in whole["text"])
    for tokens in range(1, 25):
        for engine in DECODE:  # the second cuts what is left of it, too; then a prefill engine serves the end alone
            fault(fleet, engine, None)
            fault(fleet, engine, {"kind": "cut_stream", "after_tokens": tokens, "count": 1})
        events = ask(fleet, path, {**body, **MORE})
        assert told(events) == whole, f"cut after {tokens}"
        assert SECRET not in json.dumps(events)
    found = rows(fleet, before + 25)[before:]
    assert [row["outcome"] for row in found] == ["served"] * 25
    assert {row["completion_tokens"] for row in found} == {24}
    assert {row["prompt_tokens"] for row in found} == {found[0]["prompt_tokens"]}
    # a token is cut off before its chunk is sent: at first nothing has been told yet, and it is a retry
    untold = next(place for place, row in enumerate(found[1:]) if row["continued"])
    assert untold in (1, 3)
    assert {row["continued"] for row in found[1 + untold :]} == {1, 2}
    assert all((row["gap_s"] is not None) == (row["continued"] > 0) for row in found)
    eventually(lambda: released(fleet), "release")


def test_streams_that_may_not_go_on_end_with_one_clear_error(fleet: Fleet) -> None:
    path, body = ASKS["completion"]
    declined = {"x-narwhal-continue": "off"}
    for more, headers in (({}, declined), ({"stop": ["qqq"]}, {}), ({"seed": 5, "temperature": 1}, {})):
        for engine in DECODE:
            fault(fleet, engine, None)
            fault(fleet, engine, {"kind": "cut_stream", "after_tokens": 10, "count": 1})
        events = ask(fleet, path, {**body, **MORE, **more}, **headers)
        seen = told(events)
        assert len(seen["errors"]) == 1
        assert "error" in events[-1]
        assert seen["errors"][0]["code"] == "upstream"
        assert seen["text"]
    eventually(lambda: [row["outcome"] for row in fleet.router.rows("request")[-3:]] == ["cut"] * 3, "the rows")
    assert all(row["continued"] == 0 for row in fleet.router.rows("request")[-3:])


@pytest.mark.parametrize("workers", [1, 2])
def test_streams_of_a_crashed_engine_go_on(tmp_path: Path, workers: int) -> None:
    path, body = ASKS["chat"]
    body = {**body, **MORE, "max_tokens": 400}
    with fleet_of(tmp_path, 4, **{**OPTIONS, "speed": 1.0}, workers=workers) as fleet, ThreadPoolExecutor(8) as pool:
        whole = told(ask(fleet, path, body))
        clients = [pool.submit(ask, fleet, path, body) for _ in range(8)]
        eventually(lambda: "narwhal_streams_open 8.0" in metrics(fleet), "the streams")
        busy = max(DECODE, key=lambda place: fleet.router.state()["engines"][place]["residents"])
        fault(fleet, busy, {"kind": "crash"})
        assert fleet.engines[busy].wait(60) == 137
        answers = [told(client.result()) for client in clients]
        assert answers == [whole] * 8
        found = rows(fleet, 9)
        assert {row["outcome"] for row in found} == {"served"}
        assert sum(row["continued"] for row in found) >= 1
        eventually(lambda: released(fleet), "release")
        assert f"narwhal_continuations_total {sum(row['continued'] for row in found)}.0" in metrics(fleet)
