"""Handoffs that are tried: who asked for which, and with whom an engine is paired."""

from collections.abc import Collection
from dataclasses import dataclass

from narwhal.control.commands import Purpose, TryPair
from narwhal.control.state import Engine, Pool, Settings

SLACK_S = 5.0
"""How long after both legs' time a try is given up that nobody reported."""


@dataclass(slots=True)
class Trial:
    """A handoff that is being tried."""

    producer: str
    consumer: str
    purpose: Purpose
    owner: str
    """Whose question it answers: a case's number, or the engine that is readmitted."""
    until_t: float
    """When nobody waits for it any more."""


class Trials:
    """Hands out numbers, and keeps what is under way."""

    def __init__(self, settings: Settings, pool: Pool) -> None:
        self.settings = settings
        self.pool = pool
        self.number = 0
        self.open: dict[int, Trial] = {}

    def ask(self, t: float, producer: str, consumer: str, purpose: Purpose, owner: str = "") -> TryPair:
        """Have a handoff tried. Engines that have prompts are given the time for those too, full ones for a seat."""
        sides = [engine for name in {producer, consumer} if (engine := self.pool.engines.get(name)) is not None]
        timeout_s = 2 * (self.settings.recovery.probe_timeout_s + sum(side.backlog_s(t) for side in sides))
        if any(full(side) for side in sides):
            timeout_s += self.settings.serving.deadlines.first_token_s
        self.number += 1
        self.open[self.number] = Trial(producer, consumer, purpose, owner, t + 2 * timeout_s + SLACK_S)
        return TryPair(self.number, producer, consumer, purpose, timeout_s)

    def ended(self, number: int) -> Trial | None:
        """A try is over; None: nobody waits for it."""
        return self.open.pop(number, None)

    def overdue(self, t: float) -> list[tuple[int, Trial]]:
        """Those that nobody reported in time."""
        return [(number, trial) for number, trial in self.open.items() if t > trial.until_t] if self.open else []

    def peer(self, engine: Engine, but: Collection[str]) -> Engine | None:
        """A known-good engine to pair another with: open, of its contract, the least loaded."""
        good = [
            other
            for other in self.pool.engines.values()
            if other.open and other is not engine and other.id not in but and other.fingerprint == engine.fingerprint
        ]
        return min(good, key=_load, default=None)


def full(engine: Engine) -> bool:
    """Whether an engine has no sequence or no KV left for one more: what is tried on it would wait, not fail."""
    curves = engine.curves
    return engine.charged_streams >= curves.max_num_seqs or engine.charged_kv_tokens >= curves.kv_capacity_tokens


def _load(engine: Engine) -> tuple[bool, int, str]:
    return engine.probation, engine.streams + len(engine.prefills), engine.id
