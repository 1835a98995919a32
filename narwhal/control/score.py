"""How a split is scored: projected SLO ratios, from queues, occupancy and the known cost of prompts.

Both policies read this and nothing else. The formulas and why they are so: `README.md` beside this file.
"""

from dataclasses import dataclass

from narwhal.control.load import Load, Offered
from narwhal.control.records import Candidate
from narwhal.control.state import Settings

WORST = 1e6
"""Ratio of a split that cannot serve at all; finite, so that records stay plain JSON."""


@dataclass(frozen=True, slots=True)
class Change:
    """How a candidate differs from the current split."""

    engines: int = 0
    """Engines that prefill gains (negative: loses)."""
    speed: float = 0.0
    """Speed that prefill gains (negative: loses), in reference engines."""
    occupancy: float = 0.0
    """Occupancy that leaves decode with the donors. It stays on them and is not charged to those that remain."""
    pace: float = 0.0
    """The same in the term of the TPOT target."""


@dataclass(frozen=True, slots=True)
class Scored:
    """A candidate split and its projected ratios; 1 is at target."""

    change: Change
    prefill: int
    decode: int
    ttft: float
    tpot: float
    queue: float
    """DEC: demand for decode room over what there is; above 1 a queue forms. Covers TPOT and the wait for a slot."""
    load: float
    """Prefill demand over what prefill does, pe* / cap, whatever waits."""

    @property
    def worst(self) -> float:
        """The worst of what is projected to miss: first tokens, or decode room."""
        return max(self.ttft, self.queue)

    def candidate(self, score: float) -> Candidate:
        """The record of it, with the number that the policy compares."""
        return Candidate(self.prefill, self.decode, self.ttft, self.tpot, self.queue, score)


def score(settings: Settings, load: Load, change: Change, offered: Offered | None = None) -> Scored:
    """The ratios of the split that `change` leads to; `offered` replaces the demand of `load`."""
    offered = offered or load.offered
    prefill, decode = load.prefill + change.engines, load.decode - change.engines
    speed = load.speed + change.speed
    return Scored(
        change,
        prefill,
        decode,
        ttft=ttft(settings, load, offered, prefill, speed),
        tpot=tpot(settings, load, offered, prefill, decode, load.pace - change.pace),
        queue=queue(settings, load, offered, prefill, decode, load.occupancy - change.occupancy),
        load=offered.prefill / speed if speed > 0 else WORST,
    )


def ttft(settings: Settings, load: Load, offered: Offered, prefill: int, speed: float) -> float:
    """TTFT(P'): the worst of offered load, what is left of the backlog after H, and the age of what waits."""
    if prefill <= 0 or speed <= 0:
        return WORST
    horizon_s = settings.controller.projection.horizon_s
    utilisation = offered.prefill / speed
    backlog_s = max(load.waiting_s / speed + horizon_s * (utilisation - 1), 0.0)
    return min(max(utilisation, backlog_s / load.ttft_s, load.age * load.prefill / prefill), WORST)


def queue(settings: Settings, load: Load, offered: Offered, prefill: int, decode: int, occupancy: float) -> float:
    """DEC(P'): occupancy that survives, plus what enters, over the room that visible tokens may fill."""
    if decode <= 0:
        return WORST
    demand = _demand(settings, load, offered, prefill, occupancy)
    return min(demand / (decode * settings.controller.projection.occupancy_target), WORST)


def tpot(settings: Settings, load: Load, offered: Offered, prefill: int, decode: int, pace: float) -> float:
    """Projected decode interval over the TPOT target: that of an empty batch, and its share of the room above."""
    if decode <= 0:
        return WORST
    pace = _demand(settings, load, offered, prefill, pace) / decode
    return min(load.empty_pace + pace * (1 - load.empty_pace), WORST)


def _demand(settings: Settings, load: Load, offered: Offered, prefill: int, occupancy: float) -> float:
    """S·occ + Y: once, or twice with admission on, where more prefill lets more decode in."""
    entering, steps = offered.decode, 1
    if settings.serving.admission == "predictive":
        entering, steps = offered.decode * _growth(load, offered, prefill), 2
    for _ in range(steps):
        occupancy = load.survival * occupancy + entering
    return max(occupancy, 0.0)


def _growth(load: Load, offered: Offered, prefill: int) -> float:
    now = min(offered.prefill, load.prefill)
    return min(offered.prefill, prefill) / now if now > 0 else 1.0
