"""What a scene is: one situation that is made for one router at a time, and the figures that are read from it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from routers import OURS, Running
from tools import Mock

Sample = Mapping[str, float]
"""Figures of one router in one round, by key."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What is to be reached: a ratio to the reference peer, or a figure of our own, or both."""

    ratio: float | None = None
    ours: float | None = None
    at_least: bool = False
    """Our figure is to be at least `ours`, not at most."""

    def text(self, unit: str) -> str:
        """As the table shows it."""
        parts = [] if self.ratio is None else [f"ratio ≤ {self.ratio:.2f}"]
        if self.ours is not None:
            parts.append(f"{'≥' if self.at_least else '≤'} {self.ours:g} {unit}".rstrip())
        return " and ".join(parts)

    def met(self, ours: float | None, ratio: float | None) -> bool | None:
        """Whether it is reached; None while a figure it needs is missing."""
        verdicts = []
        if self.ratio is not None:
            verdicts.append(None if ratio is None else ratio <= self.ratio)
        if self.ours is not None:
            verdicts.append(None if ours is None else (ours >= self.ours if self.at_least else ours <= self.ours))
        return False if False in verdicts else None if None in verdicts else True


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of the table."""

    key: str
    measure: str
    unit: str
    goal: Goal | None = None
    ours: str = OURS
    """Which of our routers it is about."""
    added: bool = False
    """What counts is the difference to the same scene without a router."""
    fold: Literal["median", "max"] = "median"
    """How rounds become one figure. Ratios are always medians of the rounds' ratios."""
    peers: bool = True
    """Whether peers are measured too."""


@dataclass(frozen=True, slots=True)
class Stage:
    """What a scene is played on."""

    mock: Mock
    round: int
    streams: int
    """Streams in the scenes with many."""
    stream_s: float
    """How long they last, in seconds."""


@dataclass(frozen=True, slots=True)
class Scene:
    """A situation, and how it is made for one router."""

    figures: tuple[Figure, ...]
    play: Callable[[Stage, Running], Sample]
    fresh: bool = False
    """Each sample is of a router just started: its memory holds nothing of earlier scenes."""


@dataclass(frozen=True, slots=True)
class Solo:
    """A situation that is ours alone and brings its own processes."""

    figures: tuple[Figure, ...]
    play: Callable[[Stage], Sample]
