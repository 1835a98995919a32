"""What is compared: every way to arrange the same engines."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from narwhal.simulate import EngineSetup, PolicyError, with_split

Kind = Literal["colocated", "static", "adaptive"]
CHUNKS = (512,)
"""Step sizes that colocated engines may be given besides their own: it is their one knob, so they get the better."""
MOST_SPLITS = 15
"""Splits that are tried, those nearest to what the traffic suggests; all of a fleet of 16 engines or fewer."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One arrangement, by the name that `narwhal simulate --policy` knows it by."""

    policy: str
    kind: Kind

    @property
    def disaggregated(self) -> bool:
        """Whether prefill and decode are on separate engines."""
        return self.kind != "colocated"


ADAPTIVE = (Arm("reactive", "adaptive"), Arm("projection", "adaptive"))


def colocated(engines: Sequence[EngineSetup]) -> list[Arm]:
    """Whole requests on every engine, with the engines' own step size and smaller ones."""
    own = engines[0].curves.chunk_tokens
    return [Arm("colocated", "colocated")] + [Arm(f"colocated:{chunk}", "colocated") for chunk in CHUNKS if chunk < own]


def splits(engines: Sequence[EngineSetup], share: float, most: int = MOST_SPLITS) -> list[Arm]:
    """Static splits that pins allow, the one nearest to `share` of prefill first."""
    count = len(engines)
    allowed = []
    for prefill in sorted(range(1, count), key=lambda p: (abs(p - share * count), p)):
        try:
            with_split(engines, prefill, count - prefill)
        except PolicyError:
            continue
        allowed.append(Arm(f"static:{prefill}p{count - prefill}d", "static"))
    return allowed[:most]


def split_share(arm: Arm) -> float:
    """Share of prefill engines in a static split."""
    prefill, _, decode = arm.policy.removeprefix("static:").removesuffix("d").partition("p")
    return int(prefill) / (int(prefill) + int(decode))
