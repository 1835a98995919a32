"""What arrives: requests in order of time, whatever they were made from."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests of a run, as parallel lists sorted by time."""

    name: str
    times_s: list[float]
    """Arrivals, in seconds from the start."""
    prompts: list[int]
    """Prompt lengths in tokens."""
    outputs: list[int]
    """True output lengths in tokens, at least 1."""
    classes: list[str]
    """Traffic class of each request, for the tables."""
    seconds: float
    """Length of the run, in seconds."""
    turns_s: tuple[float, ...] = ()
    """When the mix turns, in seconds from the start."""

    tenants: tuple[str, ...] = ()
    """Tenant of each request; none: `default` for all."""

    def tenant(self, number: int) -> str:
        """Who sends a request."""
        return self.tenants[number] if self.tenants else "default"

    def __len__(self) -> int:
        return len(self.times_s)

    @property
    def rate_rps(self) -> float:
        """Mean arrivals per second."""
        return len(self.times_s) / self.seconds if self.seconds > 0 else 0.0
