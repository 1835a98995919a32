"""Running one gate, or a playbook of the days after, and keeping its evidence."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import narwhal
from narwhal.deploy.ansible import Ended, Run, last_words, run_playbook
from narwhal.deploy.events import Follower, Seen
from narwhal.deploy.evidence import DOCUMENT, LOG, Failure, GateEvidence, Verdict, folder_of, private, write_evidence
from narwhal.deploy.inputs import host_of
from narwhal.deploy.lock import operator
from narwhal.deploy.opening import Opened
from narwhal.deploy.ssh import DEFAULT_PORT
from narwhal.deploy.times import as_name, utc_now


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be run."""

    name: str
    """Name in paths of evidence: `b-install`, `roll`."""
    playbook: str
    title: str
    """How it is spoken of."""
    inputs: Mapping[str, str]
    """Inputs that its evidence holds for; none: it leaves no facts."""
    limit: Sequence[str] | None = None
    variables: Mapping[str, object] | None = None
    vault: Path | None = None
    again: str = "narwhal deploy"
    """The command that goes on after a failure."""


def carry_out(
    opened: Opened, order: Order, before: GateEvidence | None, say: Callable[[str], None]
) -> tuple[GateEvidence, Path]:
    """Run a playbook and write its evidence; `before`: the newest that passed, for what a limited run leaves alone."""
    started_at = utc_now()
    folder = folder_of(opened.directory, order.name, as_name(started_at))
    run = Run(
        opened.directory,
        order.playbook,
        {
            "narwhal_evidence_dir": str(folder.absolute()),
            "narwhal_owner": operator(),
            **(order.variables or {}),
        },
        order.limit,
        vault=order.vault,
    )
    follower = Follower(say, order.title)
    ended = run_playbook(run, folder, follower)
    for path in folder.glob("*"):
        private(path)
    facts, carried = _facts(folder, before if order.limit else None)
    verdict, failure = _judged(ended, follower.seen, folder, order, opened)
    evidence = GateEvidence(
        kind="GateEvidence",
        gate=order.name,
        fleet=opened.declared.metadata.name,
        verdict=verdict,
        started_at=started_at,
        ended_at=utc_now(),
        operator=operator(),
        narwhal=narwhal.__version__,
        limited_to=list(order.limit) if order.limit else None,
        inputs=_inputs(order, before),
        changed=follower.seen.changed,
        facts=facts,
        carried=carried,
        failure=failure,
        exit_code=ended.exit_code,
    )
    return evidence, write_evidence(folder, evidence)


def _facts(folder: Path, before: GateEvidence | None) -> tuple[dict[str, Any], dict[str, str]]:
    """What each host left, and for hosts that a limited run left alone what an earlier one saw."""
    seen = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json")) if path.name != DOCUMENT}
    if before is None:
        return seen, {}
    older = {host: fact for host, fact in before.facts.items() if host not in seen}
    carried = {host: before.carried.get(host, before.ended_at) for host in older}
    return seen | older, carried


def _inputs(order: Order, before: GateEvidence | None) -> dict[str, str]:
    """The inputs that the evidence holds for: of a limited run only those of its hosts are new.

    One that is about all hosts stays as it was seen on the others, so that those are still to come.
    """
    if not order.limit:
        return dict(order.inputs)
    mine = {name: value for name, value in order.inputs.items() if host_of(name) in order.limit}
    if before is None:
        return mine | {name: value for name, value in order.inputs.items() if host_of(name) is None}
    kept = {name: value for name, value in before.inputs.items() if name in order.inputs or host_of(name) is None}
    return kept | mine


def _judged(ended: Ended, seen: Seen, folder: Path, order: Order, opened: Opened) -> tuple[Verdict, Failure | None]:
    """The verdict of a run, and why it is not `passed`."""
    log, stop = folder / LOG, seen.stop
    if ended.interrupted:
        step = f"`{order.again}` goes on from here"
        return "interrupted", Failure(host=None, task=None, message="interrupted by Ctrl-C", next_step=step)
    if ended.exit_code == 0:
        if not order.inputs or any(folder.glob("*.json")):
            return "passed", None
        said = f"{order.playbook} left no evidence of any host"
        return "broken", Failure(host=None, task=None, message=said, next_step=f"look into {log}")
    if stop is None:
        return "broken", Failure(host=None, task=None, message=last_words(folder), next_step=f"look into {log}")
    step = f"mend it, then `{order.again}` goes on with {order.title}; {log} has it all"
    if stop.unreachable:
        step = (
            f"{_ssh(opened, stop.host)} must work without a question; then `{order.again}` goes on with {order.title}"
        )
    failure = Failure(host=stop.host, task=stop.task, message=stop.message, next_step=step)
    return ("unreachable" if stop.unreachable else "failed"), failure


def _ssh(opened: Opened, name: str) -> str:
    """The command that reaches a host the way Ansible does."""
    for host in opened.wanted.fleet.hosts:
        if host.name == name and host.ssh is not None:
            port = "" if host.ssh.port == DEFAULT_PORT else f" -p {host.ssh.port}"
            known = opened.directory / "known_hosts"
            return f"`ssh -o UserKnownHostsFile={known}{port} {host.ssh.user}@{host.ssh.address}`"
    return "the host"
