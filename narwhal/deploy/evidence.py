"""The `GateEvidence` document: what a gate saw, and the inputs that it holds for."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from narwhal.deploy.gates import DAYS, GATES
from narwhal.documents import Document, Model, write_atomically
from narwhal.fleet.model import Digest, Text

Verdict = Literal["passed", "failed", "unreachable", "interrupted", "broken"]
DOCUMENT = "GateEvidence.json"
EVENTS = "events.jsonl"
LOG = "ansible.log"


class Failure(Model):
    """Why a gate stopped."""

    host: str | None
    """Host it stopped at; null: before any."""
    task: str | None
    """Task that failed."""
    message: Text
    """What is wrong, in one line."""
    next_step: Text
    """What to do."""


class GateEvidence(Document):
    """One run of a gate, or of a playbook of the days after."""

    kind: Literal["GateEvidence"]
    """This is evidence of a gate."""
    gate: Text
    """`a-discover` to `g-serve`; or `roll`, `rollback`, `stop`, `purge`."""
    fleet: Text
    """Name of the fleet."""
    verdict: Verdict
    """`failed`: a task did; `unreachable`: a host was; `broken`: Ansible could not run."""
    started_at: Text
    """UTC."""
    ended_at: Text
    """UTC."""
    operator: Text
    """Who ran it, as user@machine."""
    narwhal: Text
    """Version that ran it."""
    limited_to: list[str] | None
    """Hosts that it was limited to; null: all."""
    inputs: dict[str, Digest]
    """Digest of each input that it holds for. A limited run takes over those of hosts that it left alone."""
    changed: list[str]
    """Hosts that it changed something on."""
    facts: dict[str, Any]
    """What was seen on each host."""
    serving: dict[str, Any] | None = None
    """What gate G saw of the router through the tunnel; null: another gate."""
    carried: dict[str, Text]
    """Hosts whose facts come from an earlier run, with its time."""
    failure: Failure | None
    """Why it stopped; null: it passed."""
    exit_code: Annotated[int, Field(ge=-64, le=255)]
    """Exit code of ansible-playbook; negative: the signal that ended it."""


def folder_of(directory: Path, name: str, started_at: str) -> Path:
    """Make the folder of one run: readable by its owner alone, like all above it that it makes."""
    folder = directory / "evidence" / name / started_at
    for place in (folder.parent.parent, folder.parent, folder):
        place.mkdir(mode=0o700, exist_ok=True, parents=True)
    return folder


def write_evidence(folder: Path, evidence: GateEvidence) -> Path:
    """Write the document of a run."""
    path = folder / DOCUMENT
    write_atomically(path, evidence.model_dump_json(by_alias=True, indent=2) + "\n", mode=0o600)
    return path


def read_evidence(directory: Path, name: str) -> list[GateEvidence]:
    """Evidence of a gate, newest first; what cannot be read counts as not there."""
    found = []
    for path in sorted(directory.glob(f"evidence/{name}/*/{DOCUMENT}"), reverse=True):
        try:
            found.append(GateEvidence.model_validate_json(path.read_bytes()))
        except (OSError, ValueError):
            continue
    return found


def all_evidence(directory: Path) -> Mapping[str, list[GateEvidence]]:
    """The evidence of all gates, by letter, and of the days after, by name; newest first."""
    found = {gate.letter: read_evidence(directory, gate.name) for gate in GATES}
    return found | {name: read_evidence(directory, name) for name in DAYS}


def private(path: Path) -> None:
    """Let nobody else read a file."""
    os.chmod(path, 0o600)
