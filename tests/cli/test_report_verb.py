"""`narwhal report`: its forms, its exit codes, and what it says of what cannot be used."""

import json
import re
import sys
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


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A run, and one that is slower."""
    monkeypatch.setattr("narwhal.report.compare.RESAMPLES", 400)
    write_point(tmp_path / "before", outcomes(120))
    write_point(tmp_path / "after", outcomes(120, slower=1.5))
    return tmp_path / "before", tmp_path / "after"


@pytest.mark.parametrize("form", ["text", "markdown"])
def test_a_run_that_is_worse_is_a_finding_and_its_differences_are_shown(
    form: str, two: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = two
    code, out = run(capsys, after, "--against", before, "--format", form)
    assert code == 1
    assert "chat-4: worse, by attainment" in out.replace("**", "").replace("\\", "")
    assert "TTFT p50" in out
    if form == "text":
        assert max(map(len, out.splitlines())) <= 80
    assert run(capsys, before, "--against", after)[0] == 0


def test_the_comparison_is_in_the_document(two: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    code, result = document(capsys, two[1], "--against", two[0], "--seed", 3)
    assert (code, result["status"]) == (1, "findings")
    assert problems(result["data"], "report") == []
    comparison = result["data"]["comparison"]
    assert (comparison["here"], comparison["there"], comparison["seed"]) == ("after", "before", 3)
    assert comparison["points"][0]["verdict"] == "worse"


def test_only_one_run_can_be_judged(two: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    code, result = document(capsys, *two, "--against", two[0])
    assert (code, result["errors"][0]["code"]) == (2, "usage")


def test_a_request_is_told_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_point(tmp_path / "run", outcomes(40))
    code, out = run(
        capsys, tmp_path / "run", "--request", "bench-7", "--plots", tmp_path / "plots", "--format", "markdown"
    )
    assert code == 0
    assert "handoff" in out
    pictures = {path.name for path in (tmp_path / "plots").iterdir()}
    drawn = ("attainment", "distributions", "course-chat-4", "request-run-bench-7")
    assert pictures == {f"{name}.{kind}" for name in drawn for kind in ("png", "svg")}
    assert [line for line in out.splitlines() if line.startswith("![")] == [
        f"![{name}]({tmp_path}/plots/{name}.png)" for name in drawn
    ]


def test_an_unknown_request_and_a_missing_matplotlib_are_unusable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_point(tmp_path, outcomes(10))
    code, result = document(capsys, tmp_path, "--request", "none")
    assert (code, result["errors"][0]["code"]) == (2, "request")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, result = document(capsys, tmp_path, "--plots", tmp_path / "plots")
    assert (code, result["errors"][0]["code"]) == (2, "matplotlib")
    assert "pip install 'narwhal-inference[plots]'" in result["errors"][0]["hint"]


def test_the_page_names_every_option_and_every_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    docs = Path(__file__).parents[2] / "docs"
    page, codes = (docs / "report.md").read_text(), (docs / "reference/exit-codes.md").read_text()
    code, told = run(capsys, "--help")
    assert code == 0
    options = set(re.findall(r"^  (?:-\w, )?(--[a-z-]+)", told, re.MULTILINE)) - {"--help", "--quiet", "--no-color"}
    assert {"--against", "--plots", "--request", "--seed", "--format"} == options
    assert options <= set(re.findall(r"--[a-z-]+", page))
    (said,) = re.findall(r"`narwhal report`: (.*?)\n\n", codes, re.DOTALL)
    assert set(re.findall(r"(?:^|,\s)(\d) ", said)) == {"0", "1", "2", "3"}
