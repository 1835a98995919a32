"""Discovering: targets, host keys that are never taken silently, and a draft that is a good fleet file."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from narwhal.cli import discover as _discover
from narwhal.cli.app import run_app
from narwhal.deploy import discovering, hostkeys
from narwhal.deploy.discovering import Found, draft_fleet_file, parse_target, read_facts
from narwhal.deploy.errors import DeployError
from narwhal.deploy.hostkeys import fingerprint, scan
from narwhal.fleet import check_text
from narwhal.fleet.model import Ssh

VERBS = (_discover,)
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAZ8b8yvI1Qmm1S3zZzKfvH6x3w0n2bqz6b1V3o9q7xK"
GPU = {"index": 0, "product": "NVIDIA H200", "driver": "570.1", "uuid": "u", "memory_mib": 144384}


def link(name: str, *addresses: str, speed: int | None = None, up: bool = True) -> dict[str, Any]:
    return {"name": name, "up": up, "addresses": list(addresses), "speed_mbps": speed}


def host(name: str, address: str, gpus: int = 0, links: Sequence[dict[str, Any]] = ()) -> Found:
    facts = {"hostname": name, "gpus": [GPU] * gpus, "interfaces": list(links), "python": {"version": "3.11.2"}}
    return Found(name, Ssh(address=address, user="ops", host_key=KEY), facts)


@pytest.mark.parametrize(
    ("text", "ssh"),
    [
        ("ops@10.0.0.1", ("ops", "10.0.0.1", 22)),
        ("ops@gpu-1.example.org:2222", ("ops", "gpu-1.example.org", 2222)),
        ("ops@[fd00::1]:22", ("ops", "fd00::1", 22)),
    ],
)
def test_targets(text: str, ssh: tuple[str, str, int]) -> None:
    found = parse_target(text)
    assert (found.user, found.address, found.port) == ssh


@pytest.mark.parametrize("text", ["10.0.0.1", "ops@", "ops@h:0", "ops@h:70000", "ops@a b", "@h", "ops@fd00::1"])
def test_what_is_no_target(text: str) -> None:
    with pytest.raises(DeployError, match="names no host"):
        parse_target(text)


@pytest.mark.parametrize(
    "found",
    [
        [host("one", "10.0.0.1")],
        [host("a", "10.0.0.1"), host("b", "10.0.0.2")],
        [host("a", "10.0.0.1", 4), host("b", "10.0.0.2", 4), host("edge", "10.0.0.3")],
        [host("a", "10.0.0.1", 1, [link("lo", "127.0.0.1"), link("eth0", "10.0.0.1")])],
        [host("a", "10.0.0.1", 2, [link("eth0", "10.0.0.1")]), host("b", "10.0.0.2", 2)],
    ],
    ids=["alone", "no-gpu", "gpus", "one-gpu", "one-without-network"],
)
def test_every_draft_is_a_good_fleet_file(found: list[Found]) -> None:
    text = draft_fleet_file(found, name="lab", model="/models/qwen3-8b")
    assert check_text(text).findings == ()
    assert yaml.safe_load(text)["model"]["name"] == "qwen3-8b"


def test_a_draft_says_what_is_there() -> None:
    fast, down = link("ib0", "10.9.0.1", speed=400000), link("eth9", speed=800000)
    gpu_host = host("a", "10.0.0.1", 2, [link("eth0", "10.0.0.1", speed=1000), fast, down])
    edge = host("edge", "10.0.0.3", 0, [link("e", "10.0.0.3")])
    text = draft_fleet_file([gpu_host, edge], name="x", model="/m")
    found = yaml.safe_load(text)
    assert found["hosts"][0]["fabric"] == {"interface": "ib0", "address": "10.9.0.1"}
    assert (found["hosts"][0]["gpus"], found["hosts"][0]["gpu_memory_gib"]) == (2, 141.0)
    assert found["hosts"][0]["ssh"]["host_key"] == KEY
    assert found["routers"]["primary"] == "edge"
    assert found["metadata"] == {"name": "x", "python": "3.11"}
    assert found["split"] == {"prefill": 1, "decode": 1}


def test_hosts_of_one_name_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovering, "read_facts", lambda *_: {"hostname": "GPU_Box.example.org"})
    found = discovering.look_at([(Ssh(address=f"10.0.0.{i}", user="o"), KEY) for i in (1, 2)])
    assert [one.name for one in found] == ["gpu-box", "gpu-box-2"]


def test_a_fingerprint_is_what_ssh_keygen_shows(tmp_path: Path) -> None:
    if shutil.which("ssh-keygen") is None:
        pytest.fail("ssh-keygen is not installed: apt-get install openssh-client")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "key"], check=True)
    shown = subprocess.run(["ssh-keygen", "-lf", tmp_path / "key.pub"], check=True, capture_output=True, text=True)
    assert fingerprint((tmp_path / "key.pub").read_text()) == shown.stdout.split()[1]
    with pytest.raises(ValueError, match="no public key"):
        fingerprint("ssh-ed25519 nonsense!")


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that shows a key and says what it is."""
    monkeypatch.setattr("narwhal.deploy.scan", lambda *_: KEY)
    monkeypatch.setattr(discovering, "read_facts", lambda *_: host("gpu-1", "10.0.0.1", 2).facts)


def test_a_key_that_nobody_confirmed_is_shown_and_refused(answering: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["discover", "ops@10.0.0.1"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert fingerprint(KEY) in said.err
    assert "--accept-host-key" in said.err
    assert run_app(["discover", "ops@10.0.0.1", "--accept-host-key", "SHA256:another"]) == 2


def test_an_accepted_key_is_pinned_in_the_draft(answering: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["discover", "ops@10.0.0.1", "--accept-host-key", fingerprint(KEY), "--name", "lab"]) == 0
    said = capsys.readouterr()
    assert yaml.safe_load(said.out)["hosts"][0]["ssh"]["host_key"] == KEY
    assert "gpu-1: unknown system, 2 x NVIDIA H200" in said.err


def program(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.mark.e2e
def test_what_ssh_says_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    program(tmp_path, "ssh", "cat >/dev/null; echo 'ops@10.0.0.1: Permission denied (publickey).' >&2; exit 255")
    with pytest.raises(DeployError, match="Permission denied"):
        read_facts(Ssh(address="10.0.0.1", user="ops"), KEY)


@pytest.mark.e2e
def test_the_best_of_the_keys_that_a_host_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    program(
        tmp_path, "ssh-keyscan", f"echo '# 10.0.0.1:22 SSH-2.0'; echo '10.0.0.1 ssh-rsa AAAA'; echo '10.0.0.1 {KEY}'"
    )
    assert scan("a", Ssh(address="10.0.0.1", user="ops")) == KEY
    program(tmp_path, "ssh-keyscan", "exit 1")
    with pytest.raises(DeployError, match=r"no SSH server answers at 10\.0\.0\.1 port 22"):
        scan("a", Ssh(address="10.0.0.1", user="ops"))
    assert hostkeys.fingerprint(KEY).startswith("SHA256:")
