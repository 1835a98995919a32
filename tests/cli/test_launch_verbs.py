"""`narwhal engine render`, `check` and `digest`: what they print, and what they say of wrong input."""

import json
from pathlib import Path

import pytest

from narwhal.cli.verbs import run_app
from narwhal.engine.record import read_launch
from narwhal.engine.tree import tree_digest
from tests.engine.test_render import CPU, FLEET, LOCAL


@pytest.fixture
def fleet(tmp_path: Path) -> str:
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET % ("a" * 64, LOCAL, CPU, "local"))
    return str(file)


def test_render_prints_or_writes_the_record(fleet: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["engine", "render", fleet, "local/0"]) == 0
    printed = capsys.readouterr().out
    target = tmp_path / "launch.json"
    assert run_app(["engine", "render", fleet, "local/0", "-o", str(target), "--format", "json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert target.read_text() == printed
    assert result["artifacts"] == [str(target)]
    assert result["data"]["digest"] == read_launch(target).digest()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["render", "FLEET", "local/7"], 2, "no engine 'local/7'"),
        (["render", "/nowhere.yaml", "local/0"], 2, "/nowhere.yaml"),
        (["check", "--launch", "FLEET"], 2, "is not an EngineLaunch"),
        (["check", "--launch", "LAUNCH", "--skip", "nonsense"], 2, "there is no check 'nonsense'"),
        (["run", "--launch", "LAUNCH"], 4, "/opt/cpu/bin/python is not there"),
        (["attest", "--launch", "/nowhere.json", "--port", "0"], 2, "No such file"),
        (["digest", "/nowhere"], 4, "/nowhere"),
    ],
)
def test_wrong_input_is_named(
    fleet: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, said: str
) -> None:
    launch = tmp_path / "launch.json"
    assert run_app(["engine", "render", fleet, "local/0", "-o", str(launch)]) == 0
    places = {"FLEET": fleet, "LAUNCH": str(launch)}
    assert run_app(["engine", *(places.get(argument, argument) for argument in arguments)]) == code
    assert said in capsys.readouterr().err


def test_check_tells_each_check_and_the_next_step(
    fleet: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    launch = tmp_path / "launch.json"
    run_app(["engine", "render", fleet, "local/0", "-o", str(launch), "--quiet"])
    capsys.readouterr()
    assert run_app(["engine", "check", "--launch", str(launch), "--skip", "ports"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines if not line.startswith(" ")] == [
        "FAIL executable",
        "FAIL packages",
        "FAIL connector",
        "FAIL model",
        "SKIP gpus",
        "FAIL secrets",
    ]
    assert all(line.startswith("     next: ") for line in lines if line.startswith(" "))


def test_digest_prints_what_the_fleet_file_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert run_app(["engine", "digest", str(tmp_path)]) == 0
    assert capsys.readouterr().out.strip() == tree_digest(tmp_path)
