"""What a drill is: a fault, what it must come to, and a function that brings it about and looks."""

import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from narwhal.drills.plan import Plan

if TYPE_CHECKING:
    from narwhal.drills.fleet import Fleet

PATIENCE_S = 90.0
"""How long anything may take on a slow machine, in seconds; what is judged by time is a figure."""
_POLL_S = 0.02

Figures = dict[str, float | int | None]
"""What a drill has measured, by name with its unit; None: it did not come to that."""


class DrillError(Exception):
    """The outcome was another than it must be; the message says which."""


class UnavailableError(Exception):
    """What a drill needs is missing here; the message names it and the next step."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What `--strict` asks of a figure."""

    figure: str
    most: float | None = None
    least: float | None = None

    def missed(self, figures: Figures) -> str:
        """How the figure misses it, in words; empty when it does not."""
        value = figures.get(self.figure)
        if value is None:
            return f"{self.figure} was not measured"
        if self.most is not None and value > self.most:
            return f"{self.figure} is {value:g}, {self.most:g} at most was the goal"
        if self.least is not None and value < self.least:
            return f"{self.figure} is {value:g}, {self.least:g} at least was the goal"
        return ""

    @property
    def words(self) -> str:
        """The goal as it is listed."""
        return f"{self.figure} ≤ {self.most:g}" if self.most is not None else f"{self.figure} ≥ {self.least:g}"


@dataclass(frozen=True, slots=True)
class Drill:
    """One row of the faults table."""

    name: str
    fault: str
    """What goes wrong."""
    goal: str
    """What must come of it."""
    how: str
    """What happens in it, and what is asserted."""
    play: "Callable[[Fleet], Figures]"
    """Lets the fault happen to a fleet that serves. Raises `DrillError`."""
    plan: Plan
    """The fleet that it needs."""
    goals: tuple[Goal, ...] = ()

    def data(self) -> dict[str, object]:
        """The row of `narwhal drill list`."""
        return {
            "name": self.name,
            "fault": self.fault,
            "goal": self.goal,
            "how": self.how,
            "needs": list(self.plan.needs),
            "strict": [goal.words for goal in self.goals],
        }


def drill(name: str, *goals: Goal, plan: Plan | None = None) -> "Callable[[Callable[[Fleet], Figures]], Drill]":
    """Make a function a drill; the paragraphs of its docstring are the fault, the goal, and how it is brought about."""

    def decorate(play: "Callable[[Fleet], Figures]") -> Drill:
        fault, goal, how = (" ".join(part.split()) for part in (inspect.getdoc(play) or "").split("\n\n"))
        return Drill(name, fault.rstrip("."), goal, how, play, plan or Plan(), goals)

    return decorate


def expect(holds: bool, otherwise: str) -> None:
    """Raise `DrillError` unless something holds."""
    if not holds:
        raise DrillError(otherwise)


def eventually(holds: Callable[[], bool], what: str, *, patience_s: float = PATIENCE_S) -> float:
    """Wait until something holds; returns the seconds that it took. Raises `DrillError` when it never does."""
    began_t = time.monotonic()
    while not holds():
        if time.monotonic() - began_t > patience_s:
            raise DrillError(f"{what} did not come within {patience_s:g} s")
        time.sleep(_POLL_S)
    return time.monotonic() - began_t
