"""A scenario: a fleet, its settings and its traffic; and what one policy makes of it."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from narwhal.control import Settings
from narwhal.simulate.engine_setup import EngineSetup
from narwhal.simulate.faults import Fault
from narwhal.simulate.policies import Policy
from narwhal.simulate.score import TARGET, UNSCORED_S, Score, met, score
from narwhal.simulate.simulation import Simulation
from narwhal.simulate.workload import Workload

CHECK_S = 5.0
"""A run that only has to be judged is looked at this often."""
PRECISION = 0.015
"""The search for goodput stops when its bounds are this close, as a share."""
WIDEST = 4.0
"""The search gives up at this many times the first guess, or a part of it."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is simulated, but for policy, rate and seed."""

    engines: tuple[EngineSetup, ...]
    settings: Settings
    traffic: Callable[[float, int], Workload]
    """Requests at a rate (requests per second) and seed."""
    faults: tuple[Fault, ...] = ()


@dataclass(slots=True)
class Outcome:
    """One run of a policy."""

    policy: str
    seed: int
    rate_rps: float
    score: Score
    moves: int
    splits: list[tuple[float, int, int]] = field(default_factory=list)


def simulation(scenario: Scenario, policy: Policy, rate_rps: float, seed: int) -> Simulation:
    """The run of a policy, not begun yet."""
    return Simulation(
        policy.engines(scenario.engines),
        policy.settings(scenario.settings),
        scenario.traffic(rate_rps, seed),
        mover=policy.mover(),
        whole=policy.whole,
        cold_s=policy.cold_s,
        faults=scenario.faults,
    )


def run(scenario: Scenario, policy: Policy, rate_rps: float, seed: int) -> Outcome:
    """Run a policy to its end and score it."""
    sim = simulation(scenario, policy, rate_rps, seed)
    sim.run()
    result = score(sim.requests, sim.workload, scenario.settings.slo)
    return Outcome(policy.name, seed, rate_rps, result, len(sim.moves), sim.splits)


def passes(scenario: Scenario, policy: Policy, rate_rps: float, seed: int) -> bool:
    """Whether at least `TARGET` of the offered requests meet their targets; stops as soon as that is impossible."""
    sim = simulation(scenario, policy, rate_rps, seed)
    times, slo = sim.workload.times_s, scenario.settings.slo
    scored = sum(t >= UNSCORED_S for t in times)
    if not scored:
        return True
    allowed = scored - TARGET * scored
    watch = _Misses(sim)
    t = 0.0
    while t < sim.workload.seconds:
        t += CHECK_S
        sim.run(t)
        if watch.count() > allowed:
            return False
    sim.run()
    attainment = score(sim.requests, sim.workload, slo).attainment
    return attainment is None or attainment >= TARGET


class _Misses:
    """Requests that have missed for certain, counted as a run goes on."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.open: list[int] = []
        self.seen = 0
        self.missed = 0

    def count(self) -> int:
        """Misses so far among requests that are scored."""
        sim, slo = self.sim, self.sim.settings.slo
        self.open += range(self.seen, len(sim.requests))
        self.seen = len(sim.requests)
        still = []
        for number in self.open:
            request, prompt = sim.requests[number], sim.workload.prompts[number]
            waited = (request.first_t if request.first_t >= 0 else sim.t) - request.arrived_t
            late = waited > slo.ttft_for(prompt)
            if not request.outcome and not late:
                still.append(number)
            elif late or not met(request, prompt, slo):
                self.missed += request.arrived_t >= UNSCORED_S
        self.open = still
        return self.missed


def goodput(
    scenario: Scenario, policy: Policy, seed: int, guess_rps: float, say: Callable[[str], None] = lambda text: None
) -> float:
    """The highest rate at which at least `TARGET` of the offered requests meet both targets, by bisection.

    0 when not even a small part of the guess passes.
    """

    def good(rate_rps: float) -> bool:
        result = passes(scenario, policy, rate_rps, seed)
        say(f"{policy.name}, seed {seed}: {rate_rps:.2f} requests/s {'pass' if result else 'fail'}")
        return result

    return bisect_rate(good, guess_rps)


def bisect_rate(good: Callable[[float], bool], guess_rps: float) -> float:
    """The highest passing rate, within `PRECISION`, where passing is monotone in the rate."""
    low, high, step = 0.0, guess_rps, 1.15
    if good(guess_rps):
        low = guess_rps
        while True:
            if low >= guess_rps * WIDEST:
                return low
            high = min(low * step, guess_rps * WIDEST)
            if not good(high):
                break
            low, step = high, step * step
    else:
        while True:
            if high <= guess_rps / WIDEST:
                return 0.0
            low = max(high / step, guess_rps / WIDEST)
            if good(low):
                break
            high, step = low, step * step
    while high / low > 1 + PRECISION:
        middle = (low * high) ** 0.5
        if good(middle):
            low = middle
        else:
            high = middle
    return low


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean, least and largest."""
    return statistics.fmean(values), min(values), max(values)
