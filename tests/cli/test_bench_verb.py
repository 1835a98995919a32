"""What `narwhal bench` says of points and targets that cannot be used, before anything is sent."""

import json
from pathlib import Path
from typing import Any

import pytest

from narwhal.cli import main
from narwhal.cli.app import run_app
from tests.fleet.fleets import BASE

assert main
POINTS = """\
apiVersion: narwhal/v1
kind: Benchmark
metadata: {name: b}
points:
  - name: one
    traffic: {kind: rate, rate_rps: 4, prompt_tokens: 50, output_tokens: 10}
"""
URL = "http://127.0.0.1:9"


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, dict[str, Any]]:
    code = run_app(["bench", *argv, "--format", "json"])
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, result


def wrong(tmp_path: Path, name: str, text: str) -> str:
    (tmp_path / name).write_text(text)
    return str(tmp_path / name)


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        ([URL], "points", "a URL declares no points"),
        (["{bare}"], "points", "the fleet file declares no points"),
        ([URL, "--points", "{points}"], "no_router", "admin listener"),
        ([URL, "--points", "{points}", "--unwatched"], "model", "which model"),
        ([URL, "--points", "{points}", "--only", "two"], "point", "no point 'two'"),
        ([URL, "--points", "{bad}"], "NW006", "not a number"),
        ([URL, "--points", "{bare}"], "points", "declares no points"),
        ([URL, "--points", "{none}"], "missing-file", "no such file"),
        (["{none}"], "missing-file", "no such file"),
        (["http://", "--points", "{points}", "--unwatched", "--model", "m"], "url", "no URL of a server"),
        ([URL, "--points", "{points}", "--unwatched", "--model", "m"], "slo", "no targets"),
    ],
)
def test_what_cannot_be_used_is_said(
    argv: list[str],
    code: str,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NARWHAL_ROUTER", raising=False)
    files = {
        "points": wrong(tmp_path, "points.yaml", POINTS),
        "bad": wrong(tmp_path, "bad.yaml", POINTS.replace("rate_rps: 4", "rate_rps: x")),
        "bare": wrong(tmp_path, "bare.yaml", BASE.partition("benchmark:")[0]),
        "none": str(tmp_path / "none.yaml"),
    }
    exit_code, result = run(capsys, *(part.format(**files) for part in argv), "--out", str(tmp_path / "out"))
    assert (exit_code, result["status"]) == (2, "unusable"), result
    assert result["errors"][0]["code"] == code
    assert said in result["errors"][0]["message"]
    assert result["errors"][0]["hint"]
    assert not (tmp_path / "out").exists()


def test_a_router_that_does_not_answer_is_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    points = wrong(tmp_path, "points.yaml", POINTS)
    exit_code, result = run(capsys, URL, "--points", points, "--router", URL)
    assert (exit_code, result["errors"][0]["code"]) == (4, "unreachable")
