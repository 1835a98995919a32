"""A fleet of hosts with pinned keys, and a stand-in for Ansible."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from narwhal.deploy import ansible, deploying
from narwhal.deploy.bundle import file_digest

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIG"
FAKE = Path(__file__).with_name("fake_ansible.py")
FLEET = f"""\
apiVersion: narwhal/v1
kind: Fleet
metadata: {{name: lab}}
model: {{name: m, path: /models/m}}
slo: {{ttft_s: 2.0, tpot_s: 0.05}}
hosts:
  - {{name: a, ssh: {{address: 10.0.0.1, user: ops, host_key: {KEY}}}, fabric: {{interface: eth1}}, engines: 2}}
  - {{name: b, ssh: {{address: 10.0.0.2, user: ops, host_key: {KEY}}}, fabric: {{interface: eth1}}, engines: 2}}
  - {{name: edge, ssh: {{address: 10.0.0.9, user: ops, host_key: {KEY}}}, fabric: {{address: 10.1.0.9}}, engines: 0}}
engines:
  runtime: {{kind: simulated}}
  max_num_seqs: 64
split: {{prefill: 2, decode: 2}}
routers: {{primary: edge}}
"""
FOUND = {"gate-a-discover.yml": {"facts": {h: {"fabric": {"address": f"10.1.0.{i}"}} for i, h in enumerate("ab", 1)}}}


class Fake:
    """The stand-in: what it is told to do, and what it was asked."""

    def __init__(self, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log = log
        self._environ = monkeypatch
        self.tell({})

    def tell(self, behaviour: dict[str, Any]) -> None:
        """What the playbooks do, beside telling of fabric addresses at gate A."""
        self._environ.setenv("NARWHAL_FAKE", json.dumps(FOUND | behaviour))

    @property
    def asked(self) -> list[dict[str, Any]]:
        """Every playbook that ran, in order."""
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []

    @property
    def letters(self) -> str:
        """Gates that ran, in order."""
        return "".join(one["playbook"][5].upper() for one in self.asked if one["playbook"].startswith("gate-"))

    def forget(self) -> None:
        """Forget what it was asked."""
        self.log.unlink(missing_ok=True)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    log = tmp_path / "asked.jsonl"
    monkeypatch.setenv("NARWHAL_FAKE_LOG", str(log))
    real = ansible.command

    def command(run: ansible.Run) -> Sequence[str]:
        return [sys.executable, str(FAKE), *real(run)[4:]]

    monkeypatch.setattr(ansible, "command", command)
    monkeypatch.setattr(deploying, "check_serving", lambda *_, **__: ({"completion": {"tokens": 4}}, None))
    return Fake(log, monkeypatch)


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    """A fleet file with an approved bundle in its run directory."""
    file = tmp_path / "fleet.yaml"
    bundle = tmp_path / "run" / "lab" / "bundle.tar"
    bundle.parent.mkdir(parents=True)
    bundle.write_bytes(b"a bundle")
    file.write_text(FLEET.replace("{name: lab}", f'{{name: lab, revision: "{file_digest(bundle)}"}}'))
    return file
