"""`narwhal advise` as it is typed: an answer first, one document for scripts, errors that say what to do."""

import json
from pathlib import Path

import pytest

from narwhal.cli.verbs import run_app
from narwhal.documents import problems
from tests.fleet.fleets import BASE

SHORT = ["--mix", "steady:conv", "--seconds", "60", "--seeds", "1", "--processes", "1", "--budget-s", "1"]


@pytest.fixture
def trace(tmp_path: Path) -> str:
    rows = "".join(f"{n * 0.5},{500 + n},{20}\n" for n in range(140))
    file = tmp_path / "t.csv"
    file.write_text("timestamp,input_length,output_length\n" + rows)
    return str(file)


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run_app(["advise", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_document_is_valid_and_says_what_there_was_no_time_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "advice.json"
    arguments = ["--profile", "8b-h100", "--engines", "4", *SHORT, "--format", "json", "-o", str(out)]
    code, printed, err = call(capsys, *arguments)
    result = json.loads(printed)
    advice = result["data"]["advice"]
    assert (code, result["status"], result["artifacts"]) == (0, "success", [str(out)])
    assert problems(advice, "advice") == []
    assert json.loads(out.read_text()) == advice
    assert (advice["engines"], advice["traffic"], advice["own_profiles"]) == (4, "steady:conv", False)
    assert advice["left_out"]
    assert advice["recommendation"].startswith("colocated")
    assert "runs" in err


def test_the_answer_is_the_first_line(capsys: pytest.CaptureFixture[str], trace: str) -> None:
    code, out, _ = call(capsys, "--profile", "8b-h100", "--engines", "2", "--trace", trace, *SHORT[2:])
    lines = out.splitlines()
    assert code == 0
    assert lines[0].startswith(("Disaggregate:", "Stay colocated:", "Cannot tell:"))
    assert any("t.csv at 2" in line for line in lines)
    assert any("not one of your engines" in line for line in lines)
    assert all(line == line.rstrip() for line in lines)


def test_a_fleet_s_own_profiles_are_told_from_assumed_ones(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, trace: str
) -> None:
    (tmp_path / "fleet.yaml").write_text(BASE)
    code, out, _ = call(capsys, str(tmp_path / "fleet.yaml"), "--trace", trace, *SHORT[4:], "--format", "json")
    advice = json.loads(out)["data"]["advice"]
    assert (code, advice["own_profiles"]) == (0, False)
    assert [line for line in advice["profiles"] if "not measured on its engines" in line] == advice["profiles"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--profile", "8b-h100", "--engines", "4"], "traffic", "give one of --trace FILE and --mix"),
        (["--mix", "steady:conv"], "advise", "name a fleet file, or give --profile and --engines"),
        (["--profile", "nobody", "--engines", "4", "--mix", "steady:conv"], "profile", "no shipped profile"),
        (["--profile", "8b-h100", "--engines", "4", "--mix", "steady:nobody"], "traffic", "no traffic class"),
        (["fleet.yaml", "--engines", "4", "--mix", "steady:conv"], "usage", "without a fleet file"),
    ],
)
def test_what_cannot_be_asked_is_said(
    capsys: pytest.CaptureFixture[str], arguments: list[str], code: str, words: str
) -> None:
    exit_code, out, _ = call(capsys, *arguments, "--format", "json")
    result = json.loads(out)
    assert (exit_code, result["status"]) == (2, "unusable")
    assert result["errors"][0]["code"] == code
    assert words in result["errors"][0]["message"]
    assert result["errors"][0]["hint"]
