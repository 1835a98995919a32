"""The role `observe`, played on this machine: what it writes, and that a second play changes nothing."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from narwhal.deploy import open_run
from narwhal.deploy.content import render_files
from narwhal.documents import data_path

pytestmark = pytest.mark.e2e
PLAY = """\
- hosts: localhost
  connection: local
  gather_facts: false
  roles: [observe]
"""


def play(folder: Path) -> str:
    argv = [sys.executable, "-m", "ansible", "playbook", "-i", "localhost,", "play.yml"]
    argv += ["-e", f"narwhal_home={folder / 'home'}", "-e", f"narwhal_etc={folder / 'etc'}"]
    environ = {**os.environ, "ANSIBLE_LOCALHOST_WARNING": "false", "ANSIBLE_HOME": str(folder / "ansible")}
    environ["ANSIBLE_PYTHON_INTERPRETER"] = sys.executable
    done = subprocess.run(argv, cwd=folder / "run", env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="the role gives its files to root")
def test_the_role_writes_what_prometheus_reads_once(tmp_path: Path) -> None:
    for path, data in render_files(open_run(data_path("inventories", "one-box", "fleet.yaml")).wanted).items():
        (tmp_path / "run" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "run" / path).write_bytes(data)
    (tmp_path / "run/play.yml").write_text(PLAY)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/fleet.yaml").write_bytes((tmp_path / "run/files/fleet.yaml").read_bytes())
    program = tmp_path / "home/current/bin/narwhal"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\numask 077\nexec {sys.executable} -m narwhal "$@"\n')
    program.chmod(0o755)
    assert re.search(r"changed=3\b", play(tmp_path))
    found = {path.relative_to(tmp_path / "etc/prometheus"): path for path in (tmp_path / "etc/prometheus").rglob("*")}
    names = {"prometheus.yml", "narwhal.rules.yml", "alertmanager.yml", "runbooks.md", "targets.json"}
    assert names | {"grafana/narwhal-ops.json"} <= {str(path) for path in found}
    for path in found.values():
        assert path.stat().st_mode & 0o777 == (0o755 if path.is_dir() else 0o644), path
    assert re.search(r"changed=0\b", play(tmp_path))
