"""How each gate stands: passed, stale and because of what, failed, never run."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from narwhal.deploy.evidence import GateEvidence
from narwhal.deploy.gates import GATES, ROLL, Gate
from narwhal.deploy.inputs import host_of, of_gate, spoken

State = Literal["passed", "stale", "failed", "never"]
_OF_LAUNCH = ("launch", "revision", "model", "runtime")
"""Inputs that a launch record holds."""


@dataclass(frozen=True, slots=True)
class Standing:
    """One gate, against its evidence."""

    gate: Gate
    state: State
    reason: str
    """Why it is not passed, or when it did."""
    evidence: GateEvidence | None
    """The newest of it."""
    hosts: tuple[str, ...] | None = None
    """The only hosts that it has to run on; None: all."""

    differing: tuple[str, ...] = ()
    """Inputs that are others than in its evidence."""

    @property
    def fresh(self) -> bool:
        """Whether it can be passed over."""
        return self.state == "passed"

    @property
    def restarts(self) -> bool:
        """Whether an engine that was started has another launch record now, so that gate C starts it anew."""
        return any(name.partition(":")[0] in _OF_LAUNCH for name in self.differing)


def standings(inputs: Mapping[str, str], evidence: Mapping[str, Sequence[GateEvidence]]) -> list[Standing]:
    """How every gate stands. `inputs` as they are now, `evidence` by gate's letter, newest first."""
    return [_standing(gate, of_gate(gate, inputs), evidence) for gate in GATES]


def _standing(gate: Gate, now: Mapping[str, str], evidence: Mapping[str, Sequence[GateEvidence]]) -> Standing:
    newest = max(_answers(gate, evidence), key=lambda one: one.started_at, default=None)
    if newest is None:
        return Standing(gate, "never", "it never ran", None)
    if newest.verdict != "passed":
        assert newest.failure is not None
        where = f"{newest.failure.host}: " if newest.failure.host else ""
        return Standing(
            gate, "failed", f"{newest.verdict} at {newest.ended_at}: {where}{newest.failure.message}", newest
        )
    known = tuple(dict.fromkeys(host for host in map(host_of, now) if host is not None))
    before = of_gate(gate, newest.inputs)
    differing = _differing(before, now)
    if gate.by_host:  # the others have passed it, whoever left
        differing = [name for name in differing if name in now or host_of(name) is None]
    if differing:
        only = _only(gate, known, [host_of(name) for name in differing if name in now])
        return Standing(gate, "stale", _why(before, now, differing), newest, only, tuple(differing))
    moved = [
        (letter, one, [host for host in one.changed if host in known])
        for letter in gate.after
        for one in evidence.get(letter, ())
        if one.ended_at > newest.started_at and any(host in known for host in one.changed)
    ]
    if moved:
        letter, one, hosts = moved[0]
        only = _only(gate, known, [host for _, _, more in moved for host in more])
        return Standing(gate, "stale", f"gate {letter} changed {', '.join(hosts)} at {one.ended_at}", newest, only)
    how = "passed" if newest.gate == gate.name else "rolled"
    return Standing(gate, "passed", f"{how} at {newest.ended_at}", newest)


def _answers(gate: Gate, evidence: Mapping[str, Sequence[GateEvidence]]) -> Iterator[GateEvidence]:
    """The evidence that counts for a gate: its own, and where a roll answers it that of rolls with inputs."""
    yield from evidence.get(gate.letter, ())
    if gate.rolled:
        yield from (one for one in evidence.get(ROLL, ()) if one.verdict == "passed" and one.inputs)


def _differing(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Names whose digest is another, or that are new or gone."""
    names = [*now, *(name for name in before if name not in now)]
    return [name for name in names if before.get(name) != now.get(name)]


def _why(before: Mapping[str, str], now: Mapping[str, str], differing: Sequence[str]) -> str:
    groups = {
        "changed": [name for name in differing if name in before and name in now],
        "new": [name for name in differing if name not in before],
        "gone": [name for name in differing if name not in now],
    }
    return "; ".join(f"{spoken(names)} {word}" for word, names in groups.items() if names)


def _only(gate: Gate, known: Sequence[str], moved: Sequence[str | None]) -> tuple[str, ...] | None:
    """The hosts that a gate has to run on, where what moved is about some alone and it can be passed by host."""
    if not gate.by_host or None in moved:
        return None
    chosen = tuple(host for host in known if host in moved)
    return chosen if 0 < len(chosen) < len(known) else None
