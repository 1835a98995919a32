"""`narwhal report`: its forms, its exit codes, and what it says of what cannot be used."""

import json
from pathlib import Path
from typing import Any

import pytest

from narwhal.cli.verbs import run_app
from narwhal.documents import problems
from tests.report.evidence import outcomes, point_named, write_point


def run(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str]:
    code = run_app(["report", *map(str, argv)])
    return code, capsys.readouterr().out


def document(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, dict[str, Any]]:
    code, out = run(capsys, *argv, "--format", "json")
    result: dict[str, Any] = json.loads(out)
    assert problems(result, "command-result") == []
    return code, result


def test_json_holds_the_report_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_point(tmp_path, outcomes(40))
    code, result = document(capsys, tmp_path)
    assert (code, result["status"]) == (0, "success")
    assert problems(result["data"], "report") == []


@pytest.mark.parametrize("form", ["text", "markdown"])
def test_tables_show_every_point_and_why_one_does_not_count(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_point(tmp_path, outcomes(40, lost=0.2), name="chat-4")
    write_point(tmp_path, outcomes(80), name="chat-8", wrong="99 % were sent within 80 ms")
    code, out = run(capsys, tmp_path, "--format", form)
    assert code == 3
    rows = {line.split()[0 if form == "text" else 1]: line for line in out.splitlines() if "chat" in line}
    assert {"chat-4", "chat-8"} <= rows.keys()
    assert "INVALID" in out
    assert "99 % were sent within 80 ms" in out.replace("\n  ", " ")
    if form == "text":
        assert max(map(len, out.splitlines())) <= 80


def test_a_point_below_its_declared_attainment_is_a_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_point(tmp_path, outcomes(40, slower=5.0), point=point_named("strict", attainment=0.9))
    assert run(capsys, tmp_path)[0] == 1


def test_what_is_left_half_done_is_shown_and_degrades(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_point(tmp_path, outcomes(40))
    (tmp_path / "chat-4/.20261130T140000.000Z.partial").mkdir()
    code, out = run(capsys, tmp_path)
    assert code == 3
    assert "partial: chat-4/.20261130T140000.000Z.partial" in out


def test_a_path_without_evidence_is_unusable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, result = document(capsys, tmp_path)
    assert (code, result["errors"][0]["code"]) == (2, "empty")
    assert result["errors"][0]["hint"]
