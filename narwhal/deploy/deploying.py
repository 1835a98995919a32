"""Deploying: which gates have to run, and running them in order until one fails."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from narwhal.deploy.ansible import Run, last_words, run_playbook
from narwhal.deploy.approving import check_bundle, reopened
from narwhal.deploy.directory import changes, write_directory
from narwhal.deploy.errors import DeployError
from narwhal.deploy.events import Follower, Stop
from narwhal.deploy.evidence import GateEvidence, all_evidence, read_evidence, write_evidence
from narwhal.deploy.frozen import write_frozen
from narwhal.deploy.gates import GATES, Gate
from narwhal.deploy.inputs import inputs_of, of_gate
from narwhal.deploy.lock import operator
from narwhal.deploy.opening import Opened
from narwhal.deploy.running import Order, carry_out
from narwhal.deploy.serving import check_serving, declared_load
from narwhal.deploy.standing import Standing, standings
from narwhal.deploy.times import utc_now

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Choice:
    """What the operator asked for."""

    through: str | None = None
    """Letter of the last gate; None: all."""
    only: str | None = None
    """Letter of the one gate, which runs even when its evidence is fresh."""
    limit: tuple[str, ...] = ()
    """Hosts; none: all that need it."""
    take_lock: bool = False
    vault: Path | None = None
    load: str | None = None
    """Command that puts the declared load on the router, through the tunnel; None: that which measures its points."""

    def gates(self) -> list[Gate]:
        """The gates that are meant, in order."""
        if self.only:
            return [gate for gate in GATES if gate.letter == self.only]
        return [gate for gate in GATES if gate.letter <= (self.through or "Z")]


@dataclass(slots=True)
class Outcome:
    """What a deployment came to."""

    passed: list[str] = field(default_factory=list)
    """Letters of gates that ran and passed."""
    passed_over: list[str] = field(default_factory=list)
    stopped: GateEvidence | None = None
    """Evidence of the gate that did not pass."""
    artifacts: list[str] = field(default_factory=list)


def standings_of(opened: Opened) -> list[Standing]:
    """How every gate of a run stands."""
    return standings(inputs_of(opened.wanted), all_evidence(opened.directory))


def to_run(choice: Choice, found: Sequence[Standing]) -> list[Standing]:
    """What of a choice has to run, as it looks before; a gate that changes something may make a later one stale.

    Raises `DeployError` when an only gate's predecessors did not pass.
    """
    meant = {gate.letter for gate in choice.gates()}
    if choice.only:
        before = [standing for standing in found if standing.gate.letter < choice.only and not standing.fresh]
        if before:
            first = before[0]
            hint = f"narwhal deploy FLEET --through {choice.only}"
            text = f"gate {first.gate.letter} comes before {choice.only}, and it is {first.state}: {first.reason}"
            raise DeployError("order", text, hint=hint)
        return [standing for standing in found if standing.gate.letter == choice.only]
    return [standing for standing in found if standing.gate.letter in meant and not standing.fresh]


def deploy(opened: Opened, choice: Choice, say: Say, again: str) -> Outcome:
    """Run what has to run, gate after gate, and stop at the first that does not pass. The directory is rendered.

    Raises `DeployError` when the fleet file changes meanwhile, and for a bundle that is not the approved one.
    """
    outcome = Outcome()
    for gate in choice.gates():
        opened = reopened(opened)
        write_directory(opened.directory, changes(opened.wanted, opened.directory))
        standing = next(one for one in standings_of(opened) if one.gate is gate)
        if standing.fresh and not choice.only:
            say(f"{gate.title}  {standing.reason}: nothing to do")
            outcome.passed_over.append(gate.letter)
            continue
        if gate.letter == "B":
            check_bundle(opened)
        say(f"{gate.title}  {gate.asks}")
        evidence, path = _pass(opened, gate, choice, standing, say, again)
        outcome.artifacts.append(str(path))
        if evidence.verdict != "passed":
            outcome.stopped = evidence
            return outcome
        outcome.passed.append(gate.letter)
        say(f"{gate.title}  passed; evidence: {path}")
        if gate.letter == "A":
            freeze(opened, evidence)
    return outcome


def _pass(
    opened: Opened, gate: Gate, choice: Choice, standing: Standing, say: Say, again: str
) -> tuple[GateEvidence, Path]:
    inputs = of_gate(gate, inputs_of(opened.wanted))
    before = next((one for one in read_evidence(opened.directory, gate.name) if one.verdict == "passed"), None)
    variables: dict[str, Any] = {"narwhal_take_lock": True} if choice.take_lock else {}
    order = Order(
        gate.name,
        gate.playbook,
        gate.title,
        inputs,
        choice.limit or standing.hosts,
        variables,
        choice.vault,
        again,
    )
    evidence, path = carry_out(opened, order, before, say)
    if gate.letter == "G" and evidence.verdict == "passed":
        evidence = _served(opened, choice, evidence, path, say)
    if evidence.verdict != "passed":
        release(opened, choice)
    return evidence, path


def _served(opened: Opened, choice: Choice, evidence: GateEvidence, path: Path, say: Say) -> GateEvidence:
    """Gate G's evidence with what is seen through the tunnel, which it fails by."""
    serving = [role for fact in evidence.facts.values() for role in fact.get("serving", ())]
    load = choice.load or declared_load(opened)
    seen, failure = check_serving(opened, load, say, standby=serving == ["standby"])
    update: dict[str, Any] = {"serving": seen, "ended_at": utc_now()}
    if failure is not None:
        update |= {"verdict": "failed", "failure": failure}
    evidence = evidence.model_copy(update=update)
    write_evidence(path.parent, evidence)
    return evidence


def release(opened: Opened, choice: Choice) -> None:
    """Take the lock off the hosts after a gate that stopped; a host that is not reached keeps it."""
    with tempfile.TemporaryDirectory(prefix="narwhal-unlock-") as folder:
        run = Run(opened.directory, "unlock.yml", {"narwhal_owner": operator()}, vault=choice.vault)
        run_playbook(run, Path(folder), Follower(_nobody, ""))


def dry_run(
    opened: Opened, choice: Choice, plan: Sequence[Standing], say: Say, bundle: Path | None = None
) -> Stop | None:
    """Have Ansible say what each gate of a plan would change, changing nothing; where it stopped, or None.

    `bundle`: where the bundle is, when it is not in the run directory.
    """
    for standing in plan:
        gate = standing.gate
        follower = Follower(say, gate.title, diff=True)
        with tempfile.TemporaryDirectory(prefix="narwhal-check-") as name:
            folder = Path(name)
            variables = {"narwhal_evidence_dir": name, "narwhal_owner": operator()}
            if bundle is not None:
                variables["narwhal_bundle"] = str(bundle.absolute())
            limit = choice.limit or standing.hosts
            run = Run(opened.directory, gate.playbook, variables, limit, check=True, vault=choice.vault)
            ended = run_playbook(run, folder, follower)
            if ended.interrupted:
                raise KeyboardInterrupt
            if ended.exit_code:
                return follower.seen.stop or Stop("", "", last_words(folder), unreachable=False)
    return None


@contextmanager
def in_scratch(opened: Opened) -> Iterator[Opened]:
    """The run rendered into a folder that goes away; its bundle stays where it is."""
    with tempfile.TemporaryDirectory(prefix="narwhal-diff-") as name:
        scratch = replace(opened, directory=Path(name) / "run")
        write_directory(scratch.directory, changes(scratch.wanted, scratch.directory))
        yield scratch


def _nobody(_text: str) -> None:
    """Nobody is told."""


def freeze(opened: Opened, evidence: GateEvidence) -> None:
    """Keep the fabric addresses that gate A found, and the digests of the inputs that it passed with."""
    addresses = dict(opened.frozen.addresses)
    for host in opened.declared.hosts:
        found = (evidence.facts.get(host.name) or {}).get("fabric") or {}
        if host.fabric.interface and host.fabric.address is None and found.get("address"):
            addresses[host.name] = str(found["address"])
    frozen = opened.frozen.model_copy(update={"addresses": addresses, "inputs": inputs_of(opened.wanted)})
    write_frozen(opened.directory, frozen)
