"""What might change the answer: one thing at a time, by how much."""

from dataclasses import dataclass
from typing import Literal

from narwhal.advise.case import Base, Case

Factor = Literal["ttft", "tpot", "bandwidth", "latency", "prompt", "output"]
Knob = Factor | Literal["mixing"]


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that is otherwise."""

    knob: Knob
    factor: float
    case: Case

    def words(self, base: Base) -> str:
        """What is changed, with its value: `TPOT ≤ 25 ms`."""
        slo, curves, factor = base.settings.slo, base.engines[0].curves, self.factor
        match self.knob:
            case "ttft":
                targets = [*(one.ttft_s for one in slo.ttft_by_prompt), slo.ttft_s]
                return f"TTFT {_limit(factor)} {' and '.join(f'{target * factor:g}' for target in targets)} s"
            case "tpot":
                return f"TPOT {_limit(factor)} {1e3 * slo.tpot_s * factor:g} ms"
            case "bandwidth":
                return f"handoffs at {_limit(factor)} {curves.transfer_bytes_per_s * factor / 1e9:.3g} GB/s"
            case "latency":
                return (
                    f"handoffs with {_limit(factor)} {1e3 * curves.transfer_t0_s * factor:.3g} ms before the first byte"
                )
            case "prompt":
                return f"prompts {_limit(factor)} {factor:g} times as long"
            case "output":
                return f"outputs {_limit(factor)} {factor:g} times as long"
        return "prompts and streams of one step that share no work"


def _limit(factor: float) -> str:
    return "≤" if factor < 1 else "≥"


_LADDERS: tuple[tuple[Factor, tuple[float, ...]], ...] = (
    ("tpot", (0.5, 2.0, 0.25)),
    ("ttft", (0.5, 2.0, 0.25)),
    ("output", (0.5, 2.0, 4.0)),
    ("prompt", (0.5, 2.0, 4.0)),
    ("bandwidth", (0.1, 0.01)),
    ("latency", (10.0, 100.0)),
)
"""Factors in the order in which they are tried: the near ones of every knob first."""


def changes(base: Base) -> list[Change]:
    """All that is tried, the nearest first; a TPOT target below what an empty engine takes is left out."""
    found = [Change("mixing", 1.0, Case(additive=True))]
    for place in range(max(len(factors) for _, factors in _LADDERS)):
        found += [_change(knob, factors[place]) for knob, factors in _LADDERS if place < len(factors)]
    floor_s = max(engine.curves.d0_s for engine in base.engines)
    return [change for change in found if base.settings.slo.tpot_s * change.case.tpot > floor_s]


def _change(knob: Factor, factor: float) -> Change:
    match knob:
        case "ttft":
            case = Case(ttft=factor)
        case "tpot":
            case = Case(tpot=factor)
        case "bandwidth":
            case = Case(bandwidth=factor)
        case "latency":
            case = Case(latency=factor)
        case "prompt":
            case = Case(prompt=factor)
        case "output":
            case = Case(output=factor)
    return Change(knob, factor, case)
