"""validate, show, schema and migrate, as they are typed."""

import json
from pathlib import Path

import pytest

from narwhal.cli import migrate, schema, show, validate
from narwhal.cli.app import run_app
from tests.fleet.fleets import BASE
from tests.fleet.test_migrate import OLD

VERBS = (validate, show, schema, migrate)
"""Importing them registers the verbs."""


@pytest.fixture
def good(tmp_path: Path) -> Path:
    file = tmp_path / "good.yaml"
    file.write_text(BASE)
    return file


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    file = tmp_path / "bad.yaml"
    file.write_text(BASE.replace("prefill: 3", "prefill: 2"))
    return file


def test_a_good_file_is_ok(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["validate", str(good)]) == 0
    assert capsys.readouterr().out == "ok\n"


def test_findings_exit_1_and_unusable_files_2(good: Path, bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["validate", str(good), str(bad)]) == 1
    assert f"{bad}:33:1: NW030" in capsys.readouterr().out
    assert run_app(["validate", str(bad), "none.yaml"]) == 2
    out, err = capsys.readouterr()
    assert "NW030" in out
    assert "none.yaml: no such file" in err
    assert run_app(["validate"]) == 2


def test_json_is_one_command_result(good: Path, bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["validate", str(good), str(bad), "--format", "json"]) == 1
    result = json.loads(capsys.readouterr().out)
    assert [f["findings"] for f in result["data"]["files"]] == [0, 1]
    assert [f["id"] for f in result["data"]["findings"]] == ["NW030"]
    error = result["errors"][0]
    assert (error["code"], error["file"], error["line"], error["field"]) == ("NW030", str(bad), 33, "split")


def test_formats_for_ci(bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["validate", str(bad), "--format", "sarif"]) == 1
    assert json.loads(capsys.readouterr().out)["runs"][0]["results"][0]["ruleId"] == "NW030"
    assert run_app(["validate", str(bad), "--format", "github"]) == 1
    assert capsys.readouterr().out.startswith("::error file=")
    assert run_app(["validate", str(bad), "--format", "markdown"]) == 2


def test_directories_are_searched(good: Path, bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["validate", str(good.parent), "--format", "json"]) == 1
    assert {Path(f["file"]).name for f in json.loads(capsys.readouterr().out)["data"]["files"]} == {
        "good.yaml",
        "bad.yaml",
    }


def test_the_catalogue(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["validate", "--rules"]) == 0
    assert "NW042  open admin listener" in capsys.readouterr().out


def test_show_prints_values_or_engines(good: Path, bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["show", str(good)]) == 0
    assert f"{good}:7" in capsys.readouterr().out
    assert run_app(["show", str(good), "--engines"]) == 0
    assert "gpu-2/3" in capsys.readouterr().out
    assert run_app(["show", str(good), "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)["data"]
    assert len(data["engines"]) == 8
    assert [r["host"] for r in data["routers"]] == ["edge-1", "edge-2"]
    assert run_app(["show", str(bad)]) == 1
    assert run_app(["show", "none.yaml"]) == 2


def test_schemas_are_listed_and_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["schema"]) == 0
    assert {"fleet", "profile", "command-result"} <= set(capsys.readouterr().out.split())
    assert run_app(["schema", "fleet"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["title"] == "Fleet"
    assert "# yaml-language-server: $schema=" in err
    assert run_app(["schema", "fleet", "--format", "json"]) == 0
    assert capsys.readouterr().err == ""
    assert run_app(["schema", "nothing"]) == 2


def test_migrate_prints_writes_or_refuses(tmp_path: Path, good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = tmp_path / "old.yaml"
    old.write_text(OLD)
    assert run_app(["migrate", str(old)]) == 0
    assert "ttft_s: 2.0" in capsys.readouterr().out
    assert old.read_text() == OLD
    assert run_app(["migrate", str(old), "-o", str(tmp_path / "new.yaml")]) == 0
    assert "ttft_s: 2.0" in (tmp_path / "new.yaml").read_text()
    assert run_app(["migrate", str(old), "--write"]) == 0
    assert old.read_text() == (tmp_path / "new.yaml").read_text()
    assert run_app(["migrate", str(good), "--write"]) == 0
    assert good.read_text() == BASE
    assert run_app(["migrate", "none.yaml"]) == 2
    assert run_app(["migrate", "-", "--write"]) == 2
