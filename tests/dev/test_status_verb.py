"""`narwhal dev status` when the fleet file is not the one that the processes were started from."""

import json
from typing import Any

import pytest

from narwhal.cli.verbs import run_app
from narwhal.dev import Instance, lifecycle
from narwhal.dev.lifecycle import up
from tests.dev.stubs import SERVER, members


@pytest.fixture
def running(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> Instance:
    """An instance of one engine and a router that run and were started from the fleet file as it is."""
    chosen = members(instance, SERVER, SERVER, inputs=instance.fleet_digest())
    monkeypatch.setattr(lifecycle, "members", lambda instance, expanded: chosen)
    up(instance, lambda line: None)
    return instance


def status(instance: Instance, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    code = run_app(["dev", "status", "--dir", str(instance.path), "--format", "json"])
    answer = json.loads(capsys.readouterr().out)
    assert code == answer["exit_code"]
    assert isinstance(answer, dict)
    return answer


def test_an_edited_fleet_file_degrades_and_names_up(
    running: Instance, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(running, capsys)["exit_code"] == 0
    edited = members(running, SERVER, SERVER, inputs="edited")
    monkeypatch.setattr(lifecycle, "members", lambda instance, expanded: edited)
    answer = status(running, capsys)
    assert (answer["status"], answer["exit_code"]) == ("degraded", 3)
    assert [row["state"] for row in answer["data"]["processes"]] == ["outdated", "outdated"]
    [error] = answer["errors"]
    assert error["code"] == "outdated"
    assert error["hint"] == f"narwhal dev up --dir {running.path}"


def test_a_broken_fleet_file_does_not_hide_what_runs(running: Instance, capsys: pytest.CaptureFixture[str]) -> None:
    running.fleet.write_text("model: {")
    answer = status(running, capsys)
    assert (answer["status"], answer["exit_code"]) == ("unusable", 2)
    assert [row["name"] for row in answer["data"]["processes"]] == ["local/0", "router"]
    assert all(isinstance(row["pid"], int) for row in answer["data"]["processes"])
    assert "the fleet file is not valid" in answer["errors"][0]["message"]
