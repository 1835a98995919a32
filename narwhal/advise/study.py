"""The runs that an answer needs, stage by stage; what a stage found stays when the time for the next is over."""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from narwhal.advise.arms import ADAPTIVE, Arm, Kind, colocated, split_share, splits
from narwhal.advise.case import Base, Case, prefill_share
from narwhal.advise.certainty import Sample
from narwhal.advise.document import Verdict
from narwhal.advise.knobs import Change, changes
from narwhal.advise.runs import Counts, Job, Runner, SpentError
from narwhal.advise.search import Climb, Search, climb, fewest, together
from narwhal.simulate import TARGET

MARGIN = 0.15
"""Differences of a rate below this share are the simulator's own error (docs/performance.md)."""
START = 0.7
"""Searches begin at this share of the fluid capacity."""
RUNG = 1.06
"""Step between the rates that an interval is made from."""
MOST_RUNGS = 3
"""Steps that may be added at either end until attainment falls through 90 % between two rates."""
KINDS: tuple[Kind, ...] = ("colocated", "static", "adaptive")
NEAR_SPLITS = 3
"""Splits that are tried for another number of engines: those nearest to the best one's share."""


@dataclass(slots=True)
class Found:
    """What the stages found so far."""

    climbs: dict[Kind, Climb] = field(default_factory=dict)
    runs: dict[Arm, dict[float, dict[int, Counts]]] = field(default_factory=dict)
    engines: dict[Kind, list[tuple[int, Arm] | None]] = field(default_factory=dict)
    """Fewest engines of each kind, with the seeds that were tried; None: not even the most."""
    changes: list[tuple[Change, Verdict, str]] = field(default_factory=list)
    """What was changed, the answer then, and what wins."""
    left_out: list[str] = field(default_factory=list)

    def best(self, kind: Kind) -> Arm | None:
        """The arm of a kind that got furthest."""
        arms = self.climbs[kind].best if kind in self.climbs else []
        return arms[0] if arms else None

    def sample(self) -> Sample:
        """The runs, to be drawn from."""
        return Sample(self.runs)


class Study:
    """The stages."""

    def __init__(self, runner: Runner, seeds: Sequence[int], most_engines: int, say: Callable[[str], None]) -> None:
        self.runner = runner
        self.base: Base = runner.base
        self.seeds = list(seeds)
        self.most_engines = most_engines
        self.say = say
        self.found = Found()
        self._share = prefill_share(self.base)
        engines = self.base.engines
        self.arms: dict[Kind, list[Arm]] = {
            "colocated": colocated(engines),
            "static": splits(engines, self._share),
            "adaptive": list(ADAPTIVE),
        }

    def run(self) -> Found:
        """All stages, or those that the budget allows."""
        stages: list[tuple[str, Callable[[], None]]] = [
            ("what each arrangement can hold", self._climb),
            ("how certain that is", self._measure),
            ("how many engines each needs", self._count),
            ("what would change the answer", self._change),
        ]
        for place, (name, stage) in enumerate(stages):
            self.say(name)
            try:
                stage()
            except SpentError:
                self.found.left_out += [name for name, _ in stages[place:]]
                break
        return self.found

    def _climb(self) -> None:
        start_rps = START * self.base.full_rps
        searches = [climb(Case(), self.arms[kind], self.seeds[0], start_rps) for kind in KINDS]
        for kind, result in zip(KINDS, together(self.runner, searches, self.say), strict=True):
            self.found.climbs[kind] = result
            names = ", ".join(arm.policy for arm in result.best[:1]) or "none of them"
            self.say(f"    {kind}: {names} holds {result.held_rps:.3g} req/s")

    def _measure(self) -> None:
        rate_rps = self.base.rate_rps
        best = [arm for kind in KINDS if (arm := self.found.best(kind)) is not None]
        rungs = [
            (arm, self.found.climbs[arm.kind].held_rps * factor) for arm in best for factor in (1 / RUNG, 1.0, RUNG)
        ]
        for place, seed in enumerate(self.seeds):  # each seed is whole before the next: the time may end between
            again = place and self.base.own_arrivals
            self._count_runs([*rungs, *((arm, rate_rps) for arm in best if not again)], [seed])
        for _ in range(MOST_RUNGS):
            more = [(arm, rate) for arm in best if (rate := self._beyond(arm)) is not None]
            if not more:
                break
            self._count_runs(more, self.seeds)
        others = [(arm, rate_rps) for kind in KINDS for arm in self.arms[kind] if arm not in best]
        self._count_runs(others, self.seeds[:1])

    def _count_runs(self, wanted: Sequence[tuple[Arm, float]], seeds: Sequence[int]) -> None:
        jobs = [Job(Case(), arm, rate, seed) for arm, rate in wanted for seed in seeds]
        self.say(f"    {len(jobs)} runs ({self.runner.spent_s:.0f} of {self.runner.budget_s:g} s)")
        for job, result in zip(jobs, self.runner.count(jobs), strict=True):
            self.found.runs.setdefault(job.arm, {}).setdefault(job.rate_rps, {})[job.seed] = result

    def _beyond(self, arm: Arm) -> float | None:
        """The next rate at the end where attainment has not passed 90 % yet; None: it falls through it in between."""
        rates = [rate for rate, by_seed in self.found.runs[arm].items() if len(by_seed) == len(self.seeds)]
        sample = self.found.sample()
        if sample.attainment(arm, max(rates)) >= TARGET:
            return max(rates) * RUNG
        return min(rates) / RUNG if sample.attainment(arm, min(rates)) < TARGET else None

    def _count(self) -> None:
        own, rate_rps = len(self.base.engines), self.base.rate_rps
        for seed in self.seeds[:1] if self.base.own_arrivals else self.seeds:
            kinds = [kind for kind in KINDS if self.found.best(kind) is not None]
            searches = []
            for kind in kinds:
                scaled = math.ceil(own * rate_rps / self.found.climbs[kind].held_rps)
                least = 1 if kind == "colocated" else 2
                bounds = (least, self.most_engines, scaled)
                searches.append(fewest(lambda n: Case(engines=n), self._arms_of(kind), rate_rps, seed, bounds))
            for kind, result in zip(kinds, together(self.runner, searches, self.say), strict=True):
                self.found.engines.setdefault(kind, []).append(result)

    def _arms_of(self, kind: Kind) -> Callable[[int], Sequence[Arm]]:
        """What is tried with another number of engines: the best of the kind, splits near the best one's share."""
        best = self.found.best(kind)
        assert best is not None
        if kind != "static":
            return lambda count: [best]
        share = split_share(best)

        def near(count: int) -> list[Arm]:
            order = sorted(range(1, count), key=lambda prefill: (abs(prefill - share * count), prefill))
            return [Arm(f"static:{prefill}p{count - prefill}d", "static") for prefill in order[:NEAR_SPLITS]]

        return near

    def _change(self) -> None:
        todo = changes(self.base)
        batch = max(os.cpu_count() or 1, 2)
        while todo:
            now, todo = todo[:batch], todo[batch:]
            searches = [self._contest(change.case) for change in now]
            for change, (verdict, name) in zip(now, together(self.runner, searches, self.say), strict=True):
                self.found.changes.append((change, verdict, name))
                self.say(f"    {change.words(self.base)}: {verdict.replace('_', ' ')}, {name}")

    def _contest(self, case: Case) -> Search[tuple[Verdict, str]]:
        """Who wins a case by more than the margin, with one seed, and with what."""
        seed = self.seeds[0]
        start_rps = self.found.climbs["colocated"].held_rps or START * self.base.full_rps
        whole = yield from climb(case, self.arms["colocated"], seed, start_rps)
        near = sorted(self.arms["static"], key=self._distance)[:NEAR_SPLITS]
        adaptive = self.found.best("adaptive")
        others = [*near, *([adaptive] if adaptive is not None else [])]
        held_rps = whole.held_rps or start_rps / 16
        answers = yield [Job(case, arm, held_rps * (1 + MARGIN), seed) for arm in others]
        winner = next((arm for arm, held in zip(others, answers, strict=True) if held), None)
        if winner is not None:
            return "disaggregate", winner.policy
        if not whole.best:
            return "cannot_tell", "none of them"
        answers = yield [Job(case, arm, held_rps / (1 + MARGIN), seed) for arm in others]
        return ("cannot_tell" if any(answers) else "colocate"), whole.best[0].policy

    def _distance(self, arm: Arm) -> float:
        best = self.found.best("static")
        return abs(split_share(arm) - (self._share if best is None else split_share(best)))
