"""`--tune`: a search for parameters of the controller on some traffic, and an honest report on other traffic.

Candidates are drawn by chance, seeded, and compared run by run with the parameters as they are: same traffic, same
seed. All of them get the first runs, the better half of them twice as many, and so on (successive halving), so that a
budget of runs goes where it decides something. The best one is then measured on runs that had no part in the search.
"""

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import sqrt

from narwhal.fleet.model import Controller
from narwhal.simulate.parameters import Parameter, TuneError, Value, draw_valid, with_values
from narwhal.simulate.policies import Policy
from narwhal.simulate.prepare import Prepared
from narwhal.simulate.scenario import goodput, run

SEARCH_SEED = 1
"""Seed of the candidates; the seeds of the traffic are others."""
CHANCE_ERRORS = 2.0
"""A mean gain below this many of its standard errors may be chance."""


@dataclass(frozen=True, slots=True)
class Run:
    """One traffic and seed that policies are measured on."""

    prepared: Prepared
    rate_rps: float
    seed: int

    @property
    def name(self) -> str:
        """How the run is called."""
        return f"{self.prepared.name}, seed {self.seed}"


@dataclass(frozen=True, slots=True)
class Measured:
    """What a run gave."""

    value: float
    """Attainment; goodput in requests per second when that is searched."""
    moves: int


@dataclass(slots=True)
class Candidate:
    """Values of the parameters, and what they gave on the runs so far."""

    values: dict[str, Value]
    measured: list[Measured] = field(default_factory=list)
    gains: list[float] = field(default_factory=list)
    """Over the parameters as they are: difference of attainment, or share of goodput."""

    @property
    def gain(self) -> float:
        """Mean gain so far; 0 before the first run."""
        return statistics.fmean(self.gains) if self.gains else 0.0


@dataclass(slots=True)
class Tuned:
    """A search and its report."""

    policy: str
    parameters: Sequence[Parameter]
    goodput: bool
    """Whether goodput was searched; else attainment."""
    tuning_runs: Sequence[Run]
    held_out_runs: Sequence[Run]
    default: Candidate
    best: Candidate
    default_held_out: Candidate
    best_held_out: Candidate
    tried: Sequence[Candidate]
    """Candidates that were run at least once."""
    runs: int
    """Runs of the search."""
    interrupted: bool = False

    @property
    def warnings(self) -> list[str]:
        """What stands against taking the best values."""
        return _warnings(self)

    @property
    def holds_out(self) -> bool:
        """Whether the gain shows on the runs that had no part in the search, beyond chance where that can be told."""
        return beyond_chance(self.best_held_out.gains)


def beyond_chance(gains: Sequence[float]) -> bool:
    """Whether a mean gain is positive by more than its error; of one run there is no error to tell."""
    if not gains or statistics.fmean(gains) <= 0:
        return False
    if len(gains) == 1:
        return True
    return statistics.fmean(gains) > CHANCE_ERRORS * statistics.stdev(gains) / sqrt(len(gains))


def _warnings(tuned: Tuned) -> list[str]:
    if tuned.best is tuned.default:
        same = "no candidate was better than what is there"
        if tuned.tried and not any(gain for candidate in tuned.tried for gain in candidate.gains):
            same = f"no candidate changed any result: {tuned.policy} may not read these parameters"
        return [same if tuned.tried else "stopped before a candidate was tried", *_saturated(tuned)]
    held_out, count = tuned.best_held_out, len(tuned.best_held_out.gains)
    found = list(_saturated(tuned))
    if count < len(tuned.held_out_runs):
        found.append(f"stopped after {count} of {len(tuned.held_out_runs)} held-out runs")
    if not count:
        return [*found, "the gain was not checked on anything but the runs that chose it"]
    if held_out.gain <= 0:
        found.append(
            "the gain does not hold out: it is gone on runs that had no part in the search; keep what is there"
        )
    elif not tuned.holds_out:
        found.append("the gain may be chance: on the held-out runs it is less than twice its standard error")
    elif count == 1:
        found.append("one held-out run has no spread: whether its gain is chance cannot be told")
    return found


def _saturated(tuned: Tuned) -> list[str]:
    if tuned.goodput or any(measured.value < 1 for measured in tuned.default.measured):
        return []
    return ["every request meets its targets already at this rate: nothing can be gained; use --rate or --goodput"]


class Search:
    """Measures candidates against what is there, and keeps count."""

    def __init__(self, policy: Policy, controller: Controller, *, goodput: bool, say: Callable[[str], None]) -> None:
        self.policy = policy
        self.controller = controller
        self.goodput = goodput
        self.say = say
        self.runs = 0
        self.planned = 0
        """Runs by the end of what goes on."""

    def measure(self, candidate: Candidate, on: Run, base: float | None) -> None:
        """Run a candidate once; `base`: what the present parameters gave there, None for themselves."""
        controller = with_values(self.controller, {_path(name): value for name, value in candidate.values.items()})
        scenario = on.prepared.scenario
        scenario = replace(scenario, settings=replace(scenario.settings, controller=controller))
        outcome = run(scenario, self.policy, on.rate_rps, on.seed)
        value = outcome.score.attainment
        if value is None:
            raise TuneError(f"{on.name}: no request to score; give more --seconds, or a higher --rate")
        if self.goodput:
            value = goodput(scenario, self.policy, on.seed, base or on.prepared.full_rps)
        candidate.measured.append(Measured(value, outcome.moves))
        candidate.gains.append(self.gain(value, value if base is None else base))
        self.runs += 1

    def gain(self, value: float, base: float) -> float:
        """Difference of attainment, or share of goodput."""
        if not self.goodput:
            return value - base
        return value / base - 1 if base else float(value > 0)

    def all_runs(self, candidate: Candidate, runs: Sequence[Run], base: Candidate | None) -> None:
        """Measure a candidate on the runs that it has not had yet."""
        for number in range(len(candidate.measured), len(runs)):
            self.measure(candidate, runs[number], base.measured[number].value if base else None)
            shown = f"{candidate.measured[-1].value:.3f}" + ("" if base is None else f" ({candidate.gains[-1]:+.3f})")
            self.say(f"run {self.runs} of {self.planned}: {runs[number].name}: {_words(candidate)}: {shown}")


def _path(name: str) -> tuple[str, ...]:
    return tuple(name.split(".")[1:])


def _words(candidate: Candidate) -> str:
    if not candidate.values:
        return "as it is"
    return ", ".join(f"{name.rpartition('.')[2]} {value}" for name, value in candidate.values.items())


def rounds(count: int, first: int, total: int) -> list[tuple[int, int]]:
    """(candidates, runs that each has had at its end) of each round of a search over `total` runs."""
    plan = [(count, min(first, total))]
    while plan[-1][1] < total:
        plan.append((max(plan[-1][0] // 2, 1), min(plan[-1][1] * 2, total)))
    return plan


def cost(plan: Sequence[tuple[int, int]]) -> int:
    """Runs that a plan takes."""
    before, runs = 0, 0
    for count, upto in plan:
        runs += count * (upto - before)
        before = upto
    return runs


def most_candidates(budget: int, first: int, total: int) -> int:
    """How many candidates a budget of runs is enough for, the parameters as they are included. Raises `TuneError`."""
    count = 0
    while total + cost(rounds(count + 1, first, total)) <= budget:
        count += 1
    if not count:
        least = total + cost(rounds(1, first, total))
        raise TuneError(f"--budget {budget}: {total} tuning runs need a budget of at least {least}")
    return count


def tune(
    policy: Policy,
    parameters: Sequence[Parameter],
    tuning: Sequence[Run],
    held_out: Sequence[Run],
    *,
    budget: int,
    goodput: bool,
    say: Callable[[str], None],
) -> Tuned:
    """Search within a budget of runs, then report. Ctrl-C ends the search, and again the report. Raises `TuneError`."""
    controller = tuning[0].prepared.scenario.settings.controller
    search = Search(policy, controller, goodput=goodput, say=say)
    first = len({id(run.prepared) for run in tuning})
    count = most_candidates(budget, first, len(tuning))
    rng = random.Random(SEARCH_SEED)
    candidates = [Candidate(draw_valid(parameters, controller, rng)) for _ in range(count)]
    default = Candidate({})
    interrupted = False
    search.planned = len(tuning) + cost(rounds(count, first, len(tuning)))
    try:
        search.all_runs(default, tuning, None)
        _halve(search, candidates, tuning, default, first)
    except KeyboardInterrupt:
        interrupted = True
        say("stopped searching; the best so far goes through the held-out runs (Ctrl-C again leaves them out)")
    runs = search.runs
    best = best_of(candidates, default)
    reported = _report(search, best.values, held_out)
    tried = [candidate for candidate in candidates if candidate.gains]
    interrupted = interrupted or len(reported[1].gains) < len(held_out)
    return Tuned(policy.name, parameters, goodput, tuning, held_out, default, best, *reported, tried, runs, interrupted)


def _halve(
    search: Search, candidates: Sequence[Candidate], tuning: Sequence[Run], default: Candidate, first: int
) -> None:
    """Measure all on the first runs, the better half on more."""
    left = list(candidates)
    for keep, upto in rounds(len(candidates), first, len(tuning)):
        left = sorted(left, key=lambda candidate: -candidate.gain)[:keep]
        for candidate in left:
            search.all_runs(candidate, tuning[:upto], default)


def best_of(candidates: Sequence[Candidate], default: Candidate) -> Candidate:
    """The best of those that had the most runs; what is there when none of them is better."""
    most = max((len(candidate.gains) for candidate in candidates), default=0)
    best = max((c for c in candidates if len(c.gains) == most), key=lambda c: c.gain, default=default)
    return best if best.gain > 0 else default


def _report(search: Search, values: Mapping[str, Value], held_out: Sequence[Run]) -> tuple[Candidate, Candidate]:
    """What is there and the best values on the held-out runs, pair by pair."""
    default, best = Candidate({}), Candidate(dict(values))
    search.planned = search.runs + len(held_out) * (2 if values else 1)
    try:
        for number in range(1, len(held_out) + 1):
            search.all_runs(default, held_out[:number], None)
            if values:
                search.all_runs(best, held_out[:number], default)
    except KeyboardInterrupt:
        pass
    del default.measured[len(best.measured) if values else len(held_out) :]  # stopped between the two of a pair
    return default, best if values else default
