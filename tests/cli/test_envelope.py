"""Whatever a verb does, `--format json` prints one document of schemas/command-result/v1.json."""

import json
from pathlib import Path
from typing import Any

import pytest

from narwhal.cli import migrate, schema, show, validate, version
from narwhal.cli.app import run_app
from narwhal.documents import problems
from tests.fleet.fleets import BASE

VERBS = (migrate, schema, show, validate, version)
"""Importing them registers the verbs."""


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The document that a command prints; it must be valid, and the only thing on standard output."""
    code = run_app([*arguments, "--format", "json"])
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert problems(result, "command-result") == []
    assert result["exit_code"] == code
    return result


@pytest.mark.parametrize(
    ("arguments", "status", "command"),
    [
        (["version", "--verbose"], "success", "version"),
        (["validate", "GOOD"], "success", "validate"),
        (["validate", "BAD"], "findings", "validate"),
        (["validate", "none.yaml"], "unusable", "validate"),
        (["validate", "--rules"], "success", "validate"),
        (["show", "GOOD"], "success", "show"),
        (["show", "BAD"], "findings", "show"),
        (["schema"], "success", "schema"),
        (["schema", "nothing"], "unusable", "schema"),
        (["migrate", "GOOD"], "success", "migrate"),
        (["migrate", "GOOD", "-o", "OUT"], "success", "migrate"),
        (["validate", "--no-such-option"], "unusable", "validate"),
        (["show"], "unusable", "show"),
        (["no-such-verb"], "unusable", ""),
    ],
)
def test_every_outcome_is_a_command_result(
    arguments: list[str], status: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "good.yaml").write_text(BASE)
    (tmp_path / "bad.yaml").write_text(BASE.replace("prefill: 3", "prefill: 2"))
    names = {"GOOD": "good.yaml", "BAD": "bad.yaml", "OUT": "out.yaml"}
    typed = [str(tmp_path / names[a]) if a in names else a for a in arguments]
    result = run(typed, capsys)
    assert (result["status"], result["command"]) == (status, command)


def test_an_interrupt_is_a_command_result(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("narwhal.documents.schema_names", interrupt)
    result = run(["schema"], capsys)
    assert (result["status"], result["exit_code"]) == ("interrupted", 130)


def test_what_the_system_refuses_is_a_command_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "good.yaml").write_text(BASE)
    result = run(["migrate", str(tmp_path / "good.yaml"), "-o", str(tmp_path / "none/new.yaml")], capsys)
    assert (result["status"], result["errors"][0]["file"]) == ("failed", str(tmp_path / "none/new.yaml"))


@pytest.mark.parametrize(("error", "code"), [(PermissionError(13, "no", "/x"), "system"), (ValueError("x"), "bug")])
def test_whatever_goes_wrong_is_a_command_result(
    error: Exception, code: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("narwhal.documents.schema_names", fail)
    result = run(["schema"], capsys)
    assert (result["status"], result["errors"][0]["code"]) == ("failed", code)


def test_no_command_and_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app([]) == 2
    assert capsys.readouterr().err.startswith("error[usage]: no command is given\nUsage: narwhal")
    assert run_app(["--version"]) == 0
    assert capsys.readouterr().out.startswith("narwhal ")
