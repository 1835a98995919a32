"""`narwhal dev`, from init to down, with real processes; and the operator's verbs against them."""

import json
import os
import signal
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from tests.e2e.commands import narwhal

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]
PROMPT = "The tide turns twice a day. " * 8
MESSAGES: Any = [{"role": "user", "content": PROMPT}]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home with a running dev instance of four engines."""
    path = tmp_path_factory.mktemp("home")
    assert narwhal("dev", "init", "--engines", "4", "--template", "simulated", home=path)["status"] == "success"
    try:
        result = narwhal("dev", "up", home=path)
        assert result["status"] == "success", result["errors"]
        assert len(result["data"]["started"]) == 5
        yield path
    finally:
        stopped = narwhal("dev", "down", home=path)
        assert stopped["status"] == "success", stopped["errors"]
    again = narwhal("dev", "down", home=path)
    assert (again["status"], again["data"]["stopped"]) == ("success", [])


@pytest.fixture(scope="module")
def url(home: Path) -> str:
    address = narwhal("dev", "up", home=home)["data"]["url"]
    assert isinstance(address, str)
    return address


def rows(home: Path) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in narwhal("dev", "status", home=home)["data"]["processes"]}


def test_a_second_up_finds_all_of_it_running(home: Path) -> None:
    before = {name: row["pid"] for name, row in rows(home).items()}
    result = narwhal("dev", "up", home=home)
    assert result["data"]["already_up"] is True
    assert {name: row["pid"] for name, row in rows(home).items()} == before


def test_verify_proves_every_pair_and_every_route(home: Path) -> None:
    result = narwhal("dev", "verify", home=home)
    assert result["errors"] == []
    names = [check["name"] for check in result["data"]["checks"]]
    assert len(names) == 4 + 4 * 3 + 4
    assert "local/0 hands over to local/3" in names
    assert "router /v1/chat/completions streamed" in names


def test_the_openai_client_gets_what_one_engine_gives(home: Path, url: str) -> None:
    engine = rows(home)["local/0"]["url"]
    answers = set()
    for base in (engine, url):
        client = OpenAI(base_url=f"{base}/v1", api_key="none")
        whole = client.completions.create(model="simulated", prompt=PROMPT, max_tokens=24, temperature=0)
        stream = client.completions.create(model="simulated", prompt=PROMPT, max_tokens=24, temperature=0, stream=True)
        answers |= {whole.choices[0].text, "".join(piece.choices[0].text for piece in stream if piece.choices)}
        assert whole.usage is not None
        assert whole.usage.completion_tokens == 24
    assert len(answers) == 1
    assert answers != {""}


def test_chat_through_the_router_equals_one_engine_s(home: Path, url: str) -> None:
    answers = set()
    for base in (rows(home)["local/0"]["url"], url):
        client = OpenAI(base_url=f"{base}/v1", api_key="none")
        whole = client.chat.completions.create(model="simulated", messages=MESSAGES, max_tokens=24, temperature=0)
        stream = client.chat.completions.create(
            model="simulated", messages=MESSAGES, max_tokens=24, temperature=0, stream=True
        )
        text = "".join(piece.choices[0].delta.content or "" for piece in stream if piece.choices)
        answers |= {whole.choices[0].message.content, text}
    assert len(answers) == 1
    assert answers != {""}


def test_an_edit_is_reloaded_where_that_is_enough_and_restarts_nothing(home: Path) -> None:
    before = {name: row["pid"] for name, row in rows(home).items()}
    fleet = home / "dev/default/fleet.yaml"
    text = fleet.read_text()
    try:
        fleet.write_text(text + "serving:\n  drain_s: 77\n")
        assert {name for name, row in rows(home).items() if row["state"] == "outdated"} == {"router"}
        assert narwhal("reload", str(fleet), home=home)["status"] == "success"
        assert {row["state"] for row in rows(home).values()} == {"ready"}
        fleet.write_text(text + "serving:\n  drain_s: 78\n")
        again = narwhal("dev", "up", home=home)["data"]
        assert (again["started"], again["stopped"]) == ([], [])
        assert {row["state"] for row in rows(home).values()} == {"ready"}
    finally:
        fleet.write_text(text)
        narwhal("dev", "up", home=home)
    assert {name: row["pid"] for name, row in rows(home).items()} == before


def test_verify_knows_the_keys_of_the_tenants(home: Path, tmp_path: Path) -> None:
    fleet = home / "dev/default/fleet.yaml"
    text, key = fleet.read_text(), tmp_path / "key"
    assert narwhal("keys", "new", "research", "--out", str(key), home=home)["status"] == "success"
    tenants = f"  tenants:\n    - name: research\n      keys: [{{file: {key}}}]\n"
    try:
        fleet.write_text(text.replace("routers:\n", f"routers:\n{tenants}", 1))
        assert narwhal("dev", "up", home=home)["status"] == "success"
        result = narwhal("dev", "verify", home=home)
        assert result["errors"] == []
        key.unlink()
        failed = narwhal("dev", "verify", home=home)["errors"]
        assert [problem["message"].split(":")[0] for problem in failed] == ["router knows its clients"]
    finally:
        fleet.write_text(text)
        narwhal("dev", "up", home=home)


def test_operators_hold_move_swap_and_ask_why(home: Path) -> None:
    assert narwhal("hold", "--reason", "test", home=home)["status"] == "success"
    held = narwhal("move", "local/0", "decode", home=home)
    assert held["status"] == "failed"
    state = narwhal("status", home=home)["data"]
    assert state["hold"] == {"on": True, "reason": "test"}
    assert narwhal("unhold", home=home)["status"] == "success"
    roles = {engine["id"]: engine["role"] for engine in state["engines"]}
    prefill = next(name for name, role in roles.items() if role == "prefill")
    decode = next(name for name, role in roles.items() if role == "decode")
    assert narwhal("move", "--swap", prefill, decode, home=home)["status"] == "success"
    after = {engine["id"]: engine["role"] for engine in narwhal("status", home=home)["data"]["engines"]}
    assert (after[prefill], after[decode]) == ("decode", "prefill")
    why = narwhal("why", home=home)["data"]["moves"]
    assert {move["engine"] for move in why[-1]["moves"]} == {prefill, decode}
    assert narwhal("move", "local/9", "decode", home=home)["status"] == "unusable"
    assert narwhal("move", "local/0", "both", home=home)["status"] == "unusable"


def test_up_brings_a_killed_engine_back_and_the_router_takes_it(home: Path, url: str) -> None:
    before = rows(home)
    pid = before["local/2"]["pid"]
    assert isinstance(pid, int)
    os.kill(pid, signal.SIGKILL)
    until_t = time.monotonic() + 30
    while (now := rows(home))["local/2"]["state"] != "dead":
        assert time.monotonic() < until_t, now
    result = narwhal("dev", "up", home=home)
    assert result["data"]["started"] == ["local/2"]
    assert rows(home)["router"]["pid"] == before["router"]["pid"]
    until_t = time.monotonic() + 60
    while narwhal("status", home=home)["status"] != "success":
        assert time.monotonic() < until_t, "the router did not take the new process"
        time.sleep(0.2)
    assert narwhal("dev", "verify", home=home)["errors"] == []


def test_the_curl_line_is_a_request_that_works(url: str) -> None:
    body = {"model": "simulated", "messages": MESSAGES, "max_tokens": 8}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert json.load(answer)["choices"][0]["message"]["content"]


def test_without_a_router_the_next_command_is_named(tmp_path: Path) -> None:
    (problem,) = narwhal("status", home=tmp_path)["errors"]
    assert problem["hint"] == "narwhal dev init && narwhal dev up"
    narwhal("dev", "init", "--engines", "2", home=tmp_path)
    result = narwhal("status", home=tmp_path)
    assert result["status"] == "failed"
    assert result["errors"][0]["hint"] == "narwhal dev up"
