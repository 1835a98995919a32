"""`narwhal diff`: told from renders, host by host, and nothing is written."""

import json
from pathlib import Path
from typing import Any

import pytest

from narwhal.cli import deploy as _deploy
from narwhal.cli import diff as _diff
from narwhal.cli.app import run_app
from narwhal.deploy import changes, open_run, write_directory
from tests.deploy.conftest import Fake

VERBS = (_deploy, _diff)


def rendered(fleet: Path) -> Path:
    opened = open_run(fleet)
    write_directory(opened.directory, changes(opened.wanted, opened.directory))
    return opened.directory


def told(fleet: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert run_app(["diff", str(fleet), "--format", "json"]) == 0
    data: dict[str, Any] = json.loads(capsys.readouterr().out)["data"]
    return data


def edit(fleet: Path, old: str, new: str) -> None:
    text = fleet.read_text()
    assert old in text
    fleet.write_text(text.replace(old, new))


def test_nothing_differs_from_what_was_rendered(fleet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rendered(fleet)
    assert told(fleet, capsys)["changes"] == {}
    assert run_app(["diff", str(fleet)]) == 0
    assert "nothing differs" in capsys.readouterr().out


def test_each_change_stands_at_its_host(fleet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = rendered(fleet)
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    edit(fleet, "max_num_seqs: 64", "max_num_seqs: 64\n  overrides: {b/1: {args: {speed: 2}}}")
    found = told(fleet, capsys)["changes"]
    assert list(found) == ["b", "edge", "every host"]
    assert [change["path"] for change in found["b"]] == ["files/launch/b-1.json"]
    assert [change["path"] for change in found["edge"]] == ["files/fleet.yaml"]
    assert found["edge"][0]["lines"] == ["+  overrides: {b/1: {args: {speed: 2}}}"]
    assert {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()} == before


def test_hosts_that_come_and_go(fleet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rendered(fleet)
    edit(fleet, "name: b,", "name: c,")
    found = told(fleet, capsys)["changes"]
    assert {change["kind"] for change in found["c"]} == {"added"}
    assert {change["kind"] for change in found["b"]} == {"removed"}
    assert "this machine" in found


@pytest.mark.e2e
def test_the_hosts_are_asked_from_a_folder_that_goes_away(
    fleet: Path, fake: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_app(["deploy", str(fleet), "--yes"]) == 0
    directory = fleet.parent / "run/lab"
    before = (directory / "files/launch/b-1.json").read_bytes()
    edit(fleet, "max_num_seqs: 64", "max_num_seqs: 64\n  overrides: {b/1: {args: {speed: 2}}}")
    fake.forget()
    fake.tell({"gate-b-install.yml": {"changed": ["b"], "diff": [{"before": "x\n", "after": "y\n"}]}})
    assert run_app(["diff", str(fleet), "--check"]) == 0
    said = capsys.readouterr().err
    assert "gate B install would run on b: launch of b/1 changed" in said
    assert "    b: +y" in said
    assert (fake.letters, {one["check"] for one in fake.asked}) == ("BCDEFG", {True})
    assert fake.asked[0]["variables"]["narwhal_bundle"] == str(directory / "bundle.tar")
    assert (directory / "files/launch/b-1.json").read_bytes() == before
