"""What an engine of a simulated fleet is made of."""

from dataclasses import dataclass

from narwhal.control import Curves
from narwhal.fleet.model import Role


@dataclass(frozen=True, slots=True)
class EngineSetup:
    """One engine of a simulated fleet."""

    id: str
    role: Role
    curves: Curves
    pin: Role | None = None
    device: str = ""
    """Group of engines that share its card; empty: alone."""
    measured: bool = True
    """Whether control may trust its curves."""
    prior: Curves | None = None
    """What control is told instead of its curves: it has no profile."""
    additive: bool = False
    """Whether prompts and streams of one step share no work: the step takes the sum of both, not the longer."""
