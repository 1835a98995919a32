"""What is to be sent, and when: seeded schedules that do not depend on how the fleet answers (open loop)."""

import random
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Planned:
    """One request of a schedule."""

    t_s: float
    """When it is sent, in seconds after the start of the load."""
    prompt_tokens: int
    max_tokens: int
    """Tokens it asks for; it gets all of them (`ignore_eos`)."""
    kind: str
    """Name of its phase or class, for tables."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of traffic with one mix."""

    name: str
    seconds: float
    rate_per_s: float
    """Mean arrivals per second; arrivals are a Poisson process."""
    prompt_tokens: int
    """Mean length of a prompt."""
    max_tokens: int
    """Mean length of an answer."""
    spread: float = 0.2
    """Lengths are uniform within this share around their mean."""


def poisson(phases: Sequence[Phase], seed: int) -> list[Planned]:
    """The requests of `phases`, one after the other, in order of time; equal seeds give equal schedules."""
    rng = random.Random(seed)  # noqa: S311 - a reproducible schedule, not a secret
    planned: list[Planned] = []
    start_s = 0.0
    for phase in phases:
        t_s = start_s + rng.expovariate(phase.rate_per_s)
        while t_s < start_s + phase.seconds:
            prompt, answer = (
                max(1, round(mean * rng.uniform(1 - phase.spread, 1 + phase.spread)))
                for mean in (phase.prompt_tokens, phase.max_tokens)
            )
            planned.append(Planned(t_s, prompt, answer, phase.name))
            t_s += rng.expovariate(phase.rate_per_s)
        start_s += phase.seconds
    return planned
