"""The `projection` policy: any split within k moves, all engines at once, straight from the score.

J(P') = max(TTFT, DEC) + move_cost · |P' − P|
"""

from dataclasses import dataclass

from narwhal.control.demand import Demand
from narwhal.control.donors import Donors
from narwhal.control.events import Role
from narwhal.control.load import Load
from narwhal.control.proposal import Proposal, describe
from narwhal.control.records import Guard
from narwhal.control.score import Change, Scored, score
from narwhal.control.state import Engine, Settings

NEVER = float("-inf")
LEAST_SCORE = 0.5
"""Score below which the relative gain does not fall any further."""
CONFIRMATIONS = 2
"""Evaluations that agree, while nothing is over its target yet or a move would reverse a recent one."""
OVERFLOW_PRICE = 1.0
OVERFLOW_OWN_PRICE = 0.8
OVERFLOW_OCCUPANCY = 0.5
"""When a decode engine may take a prompt: best prefill projection, its own projection, and its occupancy."""


@dataclass(frozen=True, slots=True)
class Option:
    """A candidate split with its J."""

    scored: Scored
    cost: float

    @property
    def target(self) -> Role | None:
        """Where engines go for it; None for the current split."""
        if self.scored.change.engines == 0:
            return None
        return "prefill" if self.scored.change.engines > 0 else "decode"


class Projection:
    """State: the direction that was proposed last, how often in a row, and when engines last went each way."""

    name = "projection"

    def __init__(self, settings: Settings, demand: Demand) -> None:
        self.step_s = settings.controller.projection.step_s
        self._settings = settings
        self._parameters = settings.controller.projection
        self._demand = demand
        self._agreed: Role | None = None
        self._count = 0
        self._last_t: dict[Role, float] = {"prefill": NEVER, "decode": NEVER}

    def propose(self, load: Load, donors: Donors, *, urgent: bool) -> Proposal:
        """The split with the least J, if it passes the rules. An urgent evaluation confirms nothing."""
        options = self.options(load, donors)
        current, best = options[0], self.best(options)
        candidates = tuple(option.scored.candidate(option.cost) for option in options)
        gain = self.gain(load.t, current, best)
        if best.target is None or not gain.passed:
            self._forget(urgent=urgent)
            asked = () if best.target is None else (gain,)
            return Proposal(candidates, None, 0, asked, describe(current.scored, None))
        rules = [gain, self.threshold(current, best.target), self.arrivals(load)]
        passed = all(rule.passed for rule in rules)
        rules.append(self._confirm(load.t, current, best.target, passed=passed, urgent=urgent))
        engines = abs(best.scored.change.engines)
        return Proposal(candidates, best.target, engines, tuple(rules), describe(current.scored, best.scored))

    def moved(self, t: float, target: Role, engines: int, *, own: bool) -> None:
        """Note a move, whoever made it: it may be reversed only for twice the gain for a while."""
        self._last_t[target] = t
        self._forget(urgent=False)

    def options(self, load: Load, donors: Donors) -> list[Option]:
        """Every split within k moves, the current one first."""
        changes = [Change(), *donors.changes("prefill", donors.most), *donors.changes("decode", donors.most)]
        cost = self._parameters.move_cost
        scored = [score(self._settings, load, change) for change in changes]
        return [Option(each, each.worst + cost * abs(each.change.engines)) for each in scored]

    def best(self, options: list[Option]) -> Option:
        """The least J; ties go to the current split, then to fewer prefill engines."""
        return min(options, key=lambda option: (option.cost, option.target is not None, option.scored.prefill))

    def gain(self, t: float, current: Option, best: Option) -> Guard:
        """The improvement that a move needs: a share of the score, more while all is well, twice for a reversal."""
        need = self._parameters.gain * max(current.cost, LEAST_SCORE)
        if current.cost < 1:
            need = max(need, self._parameters.gain_calm)
        if best.target is not None and self.reverses(t, best.target):
            need *= 2
        gain = current.cost - best.cost
        return Guard("gain", gain >= need, gain, need)

    def reverses(self, t: float, target: Role) -> bool:
        """Whether a move towards `target` goes against one that is younger than `reversal_s`."""
        other: Role = "decode" if target == "prefill" else "prefill"
        return t - self._last_t[other] < self._parameters.reversal_s

    def threshold(self, current: Option, target: Role) -> Guard:
        """The score from which engines may move at all: an idle fleet is not balanced."""
        name = "expand_at" if target == "prefill" else "shrink_at"
        limit = self._parameters.expand_at if target == "prefill" else self._parameters.shrink_at
        return Guard(name, current.cost >= limit, current.cost, limit)

    def arrivals(self, load: Load) -> Guard:
        """Few arrivals prove nothing, unless a prompt has waited as long as its target."""
        flow = self._demand.prefill
        count = flow.count(flow.long_span_s(load.t), load.t)
        passed = count >= self._parameters.min_arrivals or load.age >= 1
        return Guard("min_arrivals", passed, float(count), float(self._parameters.min_arrivals))

    def _confirm(self, t: float, current: Option, target: Role, *, passed: bool, urgent: bool) -> Guard:
        need = 1 if current.cost >= 1 and not self.reverses(t, target) else CONFIRMATIONS
        count = self._count if self._agreed == target and not urgent else 0
        if passed:
            count += 1
        if not urgent:
            self._agreed, self._count = (target, count) if passed else (None, 0)
        return Guard("confirmations", count >= need, float(count), float(need))

    def _forget(self, *, urgent: bool) -> None:
        if not urgent:
            self._agreed, self._count = None, 0


def overflows(settings: Settings, price_s: float, ttft_s: float, engine: Engine, engine_price_s: float) -> bool:
    """Whether decode engine `engine` may take a prompt whose best prefill engine would answer after `price_s`.

    `engine_price_s`: what it would take on `engine`. Off by default, and wherever admission refuses what is late.
    """
    if not settings.controller.projection.overflow or settings.serving.admission == "predictive":
        return False
    return (
        price_s > OVERFLOW_PRICE * ttft_s
        and engine_price_s <= OVERFLOW_OWN_PRICE * ttft_s
        and engine.occupancy(settings.slo.tpot_s) <= OVERFLOW_OCCUPANCY
    )
