"""Synthetic traffic: turning, sinusoidal, bursty and steady mixes of classes, seeded.

Written `kind:classes:seconds`, as in `turning:code,reas:60`. Phases and classes carry equal fluid load (engine
seconds for each second), as in the control study. Arrivals are Poisson: one unit-rate process, stretched by the
rate, so a higher rate brings the same requests, sooner.
"""

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from narwhal.simulate.bodies import Draw, TrafficError, resolve
from narwhal.simulate.workload import Workload

CELL_S = 0.25
"""Rates are constant for this long."""
BURST_LOAD = 0.3
"""Share of a bursty mix's load that comes in its bursts."""
BURST_PART = 1 / 6
"""Share of a period that a burst lasts."""
KINDS = ("turning", "sin", "bursty", "steady")

Shape = Callable[[float], tuple[float, ...]]
"""Load of each class at a time, in any unit."""


@dataclass(frozen=True, slots=True)
class Mix:
    """A mix as it was asked for."""

    kind: str
    classes: tuple[str, ...]
    period_s: float
    """Length of a phase (turning), of a full wave (sin), or from burst to burst (bursty)."""

    @property
    def name(self) -> str:
        """The mix as one writes it."""
        tail = f":{self.period_s:g}" if self.kind != "steady" else ""
        return f"{self.kind}:{','.join(self.classes)}{tail}"

    def shape(self) -> Shape:
        """Load of each class over time."""
        return {"turning": self._turning, "sin": self._sin, "bursty": self._bursty, "steady": self._steady}[self.kind]

    def _turning(self, t: float) -> tuple[float, ...]:
        phase = int(t / self.period_s + 1e-9) % len(self.classes)
        return tuple(1.0 if index == phase else 0.0 for index in range(len(self.classes)))

    def _sin(self, t: float) -> tuple[float, ...]:
        first = 0.5 + 0.5 * math.cos(2 * math.pi * t / self.period_s)
        return first, 1.0 - first

    def _bursty(self, t: float) -> tuple[float, ...]:
        # the burst stands in the middle of its period, so the first seconds are calm
        inside = abs((t % self.period_s) / self.period_s - 0.5) < BURST_PART / 2
        return 1.0 - BURST_LOAD, BURST_LOAD / BURST_PART if inside else 0.0

    def _steady(self, t: float) -> tuple[float, ...]:
        return (1.0,) * len(self.classes)

    def turns_s(self, seconds: float) -> tuple[float, ...]:
        """When a turning mix turns."""
        if self.kind != "turning":
            return ()
        return tuple(self.period_s * turn for turn in range(1, math.ceil(seconds / self.period_s)))


def parse_mix(text: str, draws: Mapping[str, Draw]) -> Mix:
    """The mix that `text` describes. Raises `TrafficError`, saying how one is written."""
    kind, _, rest = text.partition(":")
    names, _, period = rest.partition(":")
    usage = f"{text!r} is not a mix; write turning:code,reas:60, sin:conv,reas:120, bursty:conv,code:60 or steady:conv"
    if kind not in KINDS or not names:
        raise TrafficError(usage)
    classes = tuple(resolve(name, draws) for name in names.replace("+", ",").split(","))
    if (kind != "steady" and len(classes) < 2) or (kind in ("sin", "bursty") and len(classes) != 2):
        raise TrafficError(f"{text!r}: {kind} takes two classes")
    try:
        period_s = float(period) if kind != "steady" or period else 0.0
    except ValueError as error:
        raise TrafficError(usage) from error
    if kind != "steady" and not period_s > 0:
        raise TrafficError(f"{text!r}: its seconds must be above 0")
    return Mix(kind, classes, period_s)


def make_workload(
    mix: Mix, draws: Mapping[str, Draw], work_s: Mapping[str, float], *, rate_rps: float, seconds: float, seed: int
) -> Workload:
    """Requests of a mix over `seconds`, `rate_rps` of them a second in the mean of whole periods.

    `work_s` is the fluid work of a request of each class; a class's rate is its load over its work.
    """
    shape = mix.shape()
    scale = rate_rps / _mean_rate(mix, work_s)
    clock, marks, bodies = random.Random(seed), random.Random(seed + 1_000_003), random.Random(seed + 2_000_003)
    times: list[float] = []
    names: list[str] = []
    drawn: list[tuple[int, int]] = []
    due, passed = clock.expovariate(1.0), 0.0
    for cell in range(math.ceil(seconds / CELL_S)):
        start = cell * CELL_S
        rates = [load / work_s[name] * scale for load, name in zip(shape(start), mix.classes, strict=True)]
        total = sum(rates)
        while total > 0 and due < passed + total * CELL_S:
            t = start + (due - passed) / total
            if t >= seconds:
                break
            name = marks.choices(mix.classes, rates)[0]
            times.append(t)
            names.append(name)
            drawn.append(draws[name](bodies))
            due += clock.expovariate(1.0)
        passed += total * CELL_S
    prompts, outputs = [body[0] for body in drawn], [body[1] for body in drawn]
    return Workload(mix.name, times, prompts, outputs, names, seconds, mix.turns_s(seconds))


def _mean_rate(mix: Mix, work_s: Mapping[str, float]) -> float:
    """Requests a second when the shape is taken as engine seconds a second, in the mean of one period."""
    shape, cells = mix.shape(), 600
    period_s = {"turning": mix.period_s * len(mix.classes), "steady": 1.0}.get(mix.kind, mix.period_s)
    total = 0.0
    for cell in range(cells):
        loads = shape((cell + 0.5) * period_s / cells)
        total += sum(load / work_s[name] for load, name in zip(loads, mix.classes, strict=True))
    return total / cells
