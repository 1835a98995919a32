"""The playbooks for the days after: roll, rollback, stop, purge."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from narwhal.deploy.approving import check_bundle
from narwhal.deploy.deploying import Choice, release
from narwhal.deploy.errors import DeployError
from narwhal.deploy.evidence import GateEvidence, write_evidence
from narwhal.deploy.gates import GATES, ROLL
from narwhal.deploy.inputs import inputs_of, of_gate
from narwhal.deploy.opening import Opened
from narwhal.deploy.running import Order, carry_out


@dataclass(frozen=True, slots=True)
class Day:
    """A playbook of the days after."""

    name: str
    does: str
    """What it does, for the operator who is asked."""
    then: str
    """What comes after it, with `{file}` for the fleet file."""
    needs_bundle: bool = False


_DAYS = (
    Day(
        ROLL,
        "drains, upgrades and readmits one host at a time, and stops at the first bad one",
        "`narwhal rollback {file}` goes back; `narwhal deploy {file}` asks the gates that depend on what changed",
        needs_bundle=True,
    ),
    Day(
        "rollback",
        "brings back the revision that ran before, with its launch records, one host at a time",
        "{file} still asks for the other state: correct it before the next `narwhal deploy`",
    ),
    Day("stop", "stops routers and engines; streams that run are cut", "`narwhal deploy {file}` starts them again"),
    Day(
        "purge",
        "stops everything and removes what was installed, its state and its user included",
        "models and journals are left; `narwhal deploy {file}` begins anew",
    ),
)


def day_of(name: str) -> Day:
    """The playbook of a name. Raises `KeyError`."""
    return next(day for day in _DAYS if day.name == name)


def run_day(opened: Opened, day: Day, choice: Choice, say: Callable[[str], None]) -> tuple[GateEvidence, Path]:
    """Run one of them and keep its evidence. The directory is rendered. Raises `DeployError`."""
    playbook = f"{day.name}.yml"
    if not (opened.directory / playbook).exists():
        hint = "narwhal version says which version this is"
        raise DeployError("playbook", f"this version of narwhal has no {playbook}", hint=hint)
    if day.needs_bundle:
        check_bundle(opened)
    variables: dict[str, object] = {"narwhal_take_lock": True} if choice.take_lock else {}
    if day.name == "purge":
        variables["narwhal_purge"] = opened.declared.metadata.name
    order = Order(
        day.name,
        playbook,
        day.name,
        {},
        choice.limit or None,
        variables,
        choice.vault,
        again=f"narwhal {day.name} {opened.file}",
    )
    evidence, path = carry_out(opened, order, None, say)
    if evidence.verdict != "passed":
        release(opened, choice)
    elif day.name == ROLL and not choice.limit:
        evidence = evidence.model_copy(update={"inputs": _answered(opened)})
        write_evidence(path.parent, evidence)
    return evidence, path


def _answered(opened: Opened) -> dict[str, str]:
    """The inputs of the gates that a roll answers: it has installed and examined what they would."""
    now = inputs_of(opened.wanted)
    return {name: value for gate in GATES if gate.rolled for name, value in of_gate(gate, now).items()}
