"""`narwhal observe` as it is typed."""

import json
from pathlib import Path

import pytest

from narwhal.cli.verbs import run_app
from narwhal.documents import data_path

FLEET = data_path("inventories", "one-box", "fleet.yaml")


def test_render_says_what_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["observe", "render", str(FLEET), "-o", str(tmp_path / "out"), "--format", "json"]
    assert run_app(argv) == 0
    first = json.loads(capsys.readouterr().out)["data"]
    assert first["changed"] == first["files"]
    assert {"prometheus.yml", "narwhal.rules.yml", "grafana/narwhal-ops.json"} <= set(first["files"])
    assert run_app(argv) == 0
    assert json.loads(capsys.readouterr().out)["data"]["changed"] == []


def test_without_prometheus_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run_app(["observe", "up", str(FLEET), "--dir", str(tmp_path / "out")]) == 3
    assert "apt-get install prometheus" in capsys.readouterr().err


def test_without_a_fleet_it_says_how_to_have_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NARWHAL_HOME", str(tmp_path))
    assert run_app(["observe", "up"]) == 2
    assert "narwhal dev init" in capsys.readouterr().err


def test_a_fleet_file_that_is_wrong_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "fleet.yaml").write_text(FLEET.read_text().replace("slo:", "slow:"))
    assert run_app(["observe", "render", str(tmp_path / "fleet.yaml"), "-o", str(tmp_path / "out")]) == 2
    assert "slow" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
