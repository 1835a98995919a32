"""Rendering: the same bytes for the same fleet, never over what somebody edited, nothing left behind."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from narwhal.cli import render as _render
from narwhal.cli.app import run_app
from narwhal.deploy.content import static_files
from narwhal.deploy.manifest import MANIFEST
from narwhal.documents import problems
from tests.deploy.goldens import EXAMPLES, folder_of, rendered
from tests.fleet.fleets import BASE

VERBS = (_render,)
ENGINE = "files/launch/gpu-1-0.json"


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    file = tmp_path / "fleet.yaml"
    file.write_text(BASE)
    return file


def run(fleet: Path, *options: str) -> Path:
    """Render a fleet, which must succeed; its run directory."""
    assert run_app(["render", str(fleet), *options]) == 0
    return fleet.parent / "run" / "lab"


def tree(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_render_to_what_lies_beside_them(name: str) -> None:
    assert tree(folder_of(name)) == rendered(name), "look at the difference, then run `python -m tests.deploy.goldens`"


def test_two_processes_render_the_same_bytes(fleet: Path, tmp_path: Path) -> None:
    seen = []
    for seed in ("1", "2"):
        out = tmp_path / seed
        argv = [sys.executable, "-m", "narwhal", "render", str(fleet), "-o", str(out)]
        subprocess.run(argv, check=True, env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True)
        seen.append(tree(out))
    assert seen[0] == seen[1]


def test_the_manifest_names_every_file_and_is_valid(fleet: Path) -> None:
    directory = run(fleet)
    manifest = json.loads((directory / MANIFEST).read_text())
    assert problems(manifest, "render-manifest") == []
    assert {file["path"] for file in manifest["files"]} | {MANIFEST} == set(tree(directory))
    assert {file["path"] for file in manifest["files"] if file["source"] == "playbooks"} == set(static_files())


def test_rendering_again_writes_nothing(fleet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = run(fleet)
    before = {path: (directory / path).stat().st_mtime_ns for path in tree(directory)}
    run(fleet)
    assert "none changed" in capsys.readouterr().out
    assert {path: (directory / path).stat().st_mtime_ns for path in tree(directory)} == before


def test_a_file_edited_by_hand_is_named_and_kept(fleet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = run(fleet)
    (directory / "group_vars/all.yml").write_text("mine\n")
    fleet.write_text(BASE.replace("max_num_seqs: 64", "max_num_seqs: 32"))
    before = tree(directory)
    assert run_app(["render", str(fleet)]) == 2
    err = capsys.readouterr().err
    assert "group_vars/all.yml" in err
    assert ENGINE not in err
    assert tree(directory) == before
    assert run_app(["render", str(fleet), "--force"]) == 0
    assert "written over by --force: group_vars/all.yml" in capsys.readouterr().out
    assert (directory / "group_vars/all.yml").read_text() != "mine\n"


def test_a_file_that_was_there_before_is_not_written_over(fleet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = fleet.parent / "run" / "lab"
    directory.mkdir(parents=True)
    (directory / "ansible.cfg").write_text("[defaults]\n")
    assert run_app(["render", str(fleet)]) == 2
    assert "ansible.cfg" in capsys.readouterr().err
    assert list(tree(directory)) == ["ansible.cfg"]


def test_what_is_no_longer_asked_for_goes_and_other_files_stay(fleet: Path) -> None:
    directory = run(fleet)
    (directory / "group_vars/engines.yml").write_text("---\nmine: true\n")
    smaller = BASE.replace(
        "  - {name: edge-2, ssh: {address: 10.0.0.9, user: ops}, fabric: {address: 10.1.0.9}}\n", ""
    ).replace("  standby: edge-2\n", "")
    fleet.write_text(smaller.replace("    standby_port: 8011\n", ""))
    run(fleet)
    assert not (directory / "host_vars/edge-2.yml").exists()
    assert (directory / "group_vars/engines.yml").exists()


def test_a_removed_file_that_was_edited_is_not_thrown_away(fleet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = run(fleet)
    (directory / ENGINE).write_text("{}")
    fleet.write_text(BASE.replace("gpu-1/0: {pin: prefill}", 'gpu-1/0: {url: "http://10.1.0.1:8100"}'))
    assert run_app(["render", str(fleet)]) == 2
    assert ENGINE in capsys.readouterr().err
    assert (directory / ENGINE).read_text() == "{}"


def test_ansible_and_we_read_the_same_yaml(fleet: Path) -> None:
    """PyYAML is what Ansible reads with, and it takes `yes` for a truth value."""
    labels = BASE.replace("model: {name: m, path: /models/m}", 'model: {name: "yes", path: "/models/o: #n"}')
    fleet.write_text(labels)
    directory = run(fleet)
    found = yaml.safe_load((directory / "group_vars/all.yml").read_text())
    assert found["narwhal_model"] == {"name": "yes", "path": "/models/o: #n", "digest": None}


def test_pinned_keys_become_known_hosts(fleet: Path) -> None:
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIG"
    fleet.write_text(BASE.replace("10.0.0.1, user: ops", f"10.0.0.1, user: ops, port: 2222, host_key: {key}"))
    assert (run(fleet) / "known_hosts").read_text() == f"[10.0.0.1]:2222 {key}\n"


def test_addresses_that_gate_a_found_reach_engines_routers_and_the_fleet_file(fleet: Path) -> None:
    file_says = BASE.replace("fabric: {address: 10.1.0.1}", "fabric: {interface: eth1}").replace(
        "split:", "# comment\nsplit:"
    )
    fleet.write_text(file_says)
    directory = run(fleet)
    assert yaml.safe_load((directory / "host_vars/gpu-1.yml").read_text())["narwhal_fabric"]["address"] is None
    frozen = {"apiVersion": "narwhal/v1", "kind": "FrozenInputs", "fleet": "lab", "addresses": {"gpu-1": "10.9.9.1"}}
    (directory / "frozen.json").write_text(json.dumps(frozen))
    run(fleet)
    assert json.loads((directory / ENGINE).read_text())["host"] == "10.9.9.1"
    told = (directory / "files/fleet.yaml").read_text()
    assert 'fabric: {interface: eth1, address: "10.9.9.1"}' in told
    changed = [line for line in told.splitlines() if line not in file_says.splitlines()]
    assert len(changed) == 1
    assert fleet.read_text() == file_says


def test_another_fleets_run_directory_is_refused(fleet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = run(fleet)
    frozen = {"apiVersion": "narwhal/v1", "kind": "FrozenInputs", "fleet": "other"}
    (directory / "frozen.json").write_text(json.dumps(frozen))
    assert run_app(["render", str(fleet)]) == 2
    assert "of fleet 'other'" in capsys.readouterr().err


def test_no_secret_lands_in_it(fleet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY_B", "tell-nobody-of-this")
    monkeypatch.setenv("SCRAPE", "nor-of-this-one-here")
    assert not any(b"tell-nobody" in data or b"nor-of-this" in data for data in tree(run(fleet)).values())
