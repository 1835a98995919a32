"""What a policy answers: the splits it scored, the one it wants, and the rules it asked."""

from dataclasses import dataclass
from typing import Protocol

from narwhal.control.donors import Donors
from narwhal.control.events import Role
from narwhal.control.load import Load
from narwhal.control.records import Candidate, Guard
from narwhal.control.score import Scored


@dataclass(frozen=True, slots=True)
class Proposal:
    """The answer of one evaluation."""

    candidates: tuple[Candidate, ...]
    """The current split first."""
    target: Role | None
    """Role that engines should go to; None: no split is better by what a move needs."""
    engines: int
    """How many."""
    rules: tuple[Guard, ...]
    """Rules of the policy that were asked; one that did not pass holds the move."""
    reason: str

    @property
    def held(self) -> bool:
        """Whether a rule of the policy holds the move."""
        return not all(rule.passed for rule in self.rules)


class Policy(Protocol):
    """How splits are scored and moves chosen. Policies hold state between evaluations, and no reference to time."""

    name: str
    step_s: float
    """Time between two evaluations, in seconds."""

    def propose(self, load: Load, donors: Donors, *, urgent: bool) -> Proposal:
        """Evaluate. `urgent`: out of turn, because a prompt will be late; needs no confirmation."""

    def moved(self, t: float, target: Role, engines: int, *, own: bool) -> None:
        """Engines were moved towards `target`; `own`: by this policy, not by the operator or a floor."""


def describe(current: Scored, best: Scored | None) -> str:
    """The comparison in words, with the numbers that decided."""
    phase = "prefill" if current.ttft >= current.queue else "decode"
    text = f"{phase} is at {current.worst:.2f} of its target with {current.prefill}p{current.decode}d"
    if best is None:
        return f"{text}; no other split is better by enough"
    return f"{text}, {best.worst:.2f} with {best.prefill}p{best.decode}d"
