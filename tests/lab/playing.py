"""A rendered fleet of the lab, and runs of its playbooks by plain ansible-playbook."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.lab import network
from tests.lab.hosts import OPERATOR, Lab

_BIN = Path(sys.executable).parent
_FLEET = """apiVersion: narwhal/v1
kind: Fleet
metadata:
  name: lab
  python: "3.11"
model:
  name: tiny
  path: /models/tiny
slo: {{ttft_s: 5.0, tpot_s: 1.0}}
hosts:
{hosts}
engines:
  runtime: {{kind: simulated, profile: demo}}
  per_host: 1
  max_model_len: 4096
  max_num_seqs: 16
split: {{prefill: 1, decode: 1}}
routers:
  primary: h3
"""
_HOST = (
    '  - {{name: {name}, ssh: {{address: {address}, user: {user}, host_key: "{key}"}}, '
    "fabric: {{interface: eth1, address: {fabric}}}{more}}}"
)


@dataclass(frozen=True)
class Played:
    """What a playbook did."""

    code: int
    """Exit code of ansible-playbook."""
    events: list[dict[str, Any]]
    """As the callback told them."""
    said: str
    """What was printed."""

    @property
    def stops(self) -> dict[str, str]:
        """Why each host stopped, in one line: the callback's last words."""
        ends = [
            event for event in self.events if event["event"] in ("failed", "unreachable") and not event.get("ignored")
        ]
        return {event["host"]: event["message"] for event in ends}

    @property
    def changed(self) -> list[tuple[str, str]]:
        """Host and task of every change."""
        return [(event["host"], event["task"]) for event in self.events if event["event"] == "changed"]


@dataclass(frozen=True)
class Said:
    """What a verb said to an operator."""

    code: int
    out: str
    err: str


class Fleet:
    """A fleet file of the lab's hosts and the directory that it is rendered to."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab = lab
        self.file = folder / "fleet.yaml"
        self.directory = folder / "run" / "lab"
        hosts = []
        for name in lab.hosts():
            values = {"name": name, "user": OPERATOR, "key": lab.host_key(name)}
            places = {"address": network.address(name), "fabric": network.address(name, "fabric")}
            hosts.append(_HOST.format(**values, **places, more=", engines: 0" if name == "h3" else ""))
        self.file.write_text(_FLEET.format(hosts="\n".join(hosts)))

    def narwhal(self, *arguments: str) -> dict[str, Any]:
        """Run a verb; its result document."""
        argv = [str(_BIN / "narwhal"), *arguments, "--format", "json"]
        done = subprocess.run(argv, cwd=self.file.parent, capture_output=True, text=True, timeout=300)
        result: dict[str, Any] = json.loads(done.stdout)
        assert result["status"] == "success", done.stdout + done.stderr
        return result

    def operate(self, *arguments: str, timeout_s: float = 1500) -> Said:
        """Run a verb as an operator does, from the controller and in text."""
        with self.begin(*arguments) as process:
            out, err = process.communicate(timeout=timeout_s)
        print(out, err, sep="\n")
        return Said(process.returncode, out, err)

    def begin(self, *arguments: str) -> "subprocess.Popen[str]":
        """Begin what `operate` runs to its end; Ctrl-C does not reach it from here."""
        argv = ["ip", "netns", "exec", network.CONTROLLER, str(_BIN / "narwhal"), *arguments]
        return subprocess.Popen(
            argv,
            cwd=self.file.parent,
            env=os.environ
            | {"ANSIBLE_PRIVATE_KEY_FILE": str(self.lab.key), "ANSIBLE_HOME": str(self.file.parent / "ansible")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def runs(self, gate: str) -> list[Path]:
        """Where the CLI has left the events of each run of a gate, in order."""
        return sorted(self.directory.glob(f"evidence/{gate}/*/events.jsonl"))

    def evidence(self, gate: str) -> dict[str, Any]:
        """The newest evidence that the CLI has left of a gate."""
        path = sorted(self.directory.glob(f"evidence/{gate}/*/GateEvidence.json"))[-1]
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    def edit(self, before: str, after: str) -> None:
        """Change the fleet file."""
        text = self.file.read_text()
        assert before in text
        self.file.write_text(text.replace(before, after))

    def change(self, before: str, after: str) -> None:
        """Change the fleet file, and render it."""
        self.edit(before, after)
        self.render()

    def take_bundle(self, other: "Fleet") -> None:
        """Approve another fleet's bundle."""
        self.directory.mkdir(parents=True)
        shutil.copy(other.directory / "bundle.tar", self.directory)
        digest = hashlib.sha256((self.directory / "bundle.tar").read_bytes()).hexdigest()
        self.edit('  python: "3.11"\n', f'  python: "3.11"\n  revision: "sha256:{digest}"\n')

    def render(self) -> None:
        self.narwhal("render", str(self.file))

    def start(self, playbook: str, *arguments: str) -> "Play":
        """Begin a run of a playbook from the controller."""
        return Play(self, playbook, arguments)

    def play(self, playbook: str, *arguments: str) -> Played:
        """Run a playbook to its end."""
        return self.start(playbook, *arguments).end()


def events_of(file: Path) -> list[dict[str, Any]]:
    """What the callback has told up to now; a line that is still being written is left out."""
    return [json.loads(line) for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]


def reached(file: Path, task: str) -> bool:
    """Whether a task has begun, as the callback tells."""
    return any(event["event"] == "task" and event["task"].endswith(task) for event in events_of(file))


class Play:
    """A run of a playbook. Connections are its own: what a former run left open would skip the check of host keys."""

    def __init__(self, fleet: Fleet, playbook: str, arguments: tuple[str, ...]) -> None:
        self._sockets = tempfile.mkdtemp(prefix="nwcp")
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by end()
        self.events_file = Path(self._sockets, "events")
        self.events_file.touch()
        environment = os.environ | {
            "NARWHAL_EVENTS": str(self.events_file),
            "ANSIBLE_HOME": str(fleet.file.parent / "ansible"),
            "ANSIBLE_PRIVATE_KEY_FILE": str(fleet.lab.key),
            "ANSIBLE_SSH_CONTROL_PATH_DIR": self._sockets,
            "ANSIBLE_NOCOLOR": "1",
        }
        argv = ["ip", "netns", "exec", network.CONTROLLER, _BIN / "ansible-playbook", f"{playbook}.yml", *arguments]
        self._process = subprocess.Popen(
            argv, cwd=fleet.directory, env=environment, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log
        )

    def reached(self, task: str) -> bool:
        """Whether a task has begun."""
        return reached(self.events_file, task)

    def events(self) -> list[dict[str, Any]]:
        return events_of(self.events_file)

    def end(self, timeout_s: float = 600) -> Played:
        """Wait for the end."""
        try:
            code = self._process.wait(timeout_s)
        finally:
            self._process.kill()
            self._log.seek(0)
            said = self._log.read()
            self._log.close()
            print(said)
        played = Played(code, self.events(), said)
        shutil.rmtree(self._sockets, ignore_errors=True)
        return played
