"""The `reactive` policy: one engine at a time, to the better of the two adjacent splits, once there is evidence.

A departure leaves a settled split without waiting for evidence (`departure.py`); everything else waits until the
arrival-evidence window has closed (`evidence.py`), with two exceptions: prefill that is nearly idle may shrink, and
a role that is over its target needs one proposal only.
"""

from dataclasses import dataclass

from narwhal.control.demand import FLOW_S, Demand
from narwhal.control.departure import Departure
from narwhal.control.donors import Donors
from narwhal.control.events import Role
from narwhal.control.evidence import NEVER, Evidence, Settled
from narwhal.control.load import Load, Offered
from narwhal.control.proposal import Proposal, describe
from narwhal.control.records import Candidate, Guard
from narwhal.control.score import Change, Scored, score
from narwhal.control.state import Settings
from narwhal.fleet.model import Reactive as Parameters


@dataclass(frozen=True, slots=True)
class Adjacent:
    """The two splits one engine away, where there are donors, under one demand."""

    current: Scored
    towards: dict[Role, Scored]

    def better(self, parameters: Parameters) -> Role | None:
        """The direction that improves the score by the margin; the better of two, ties go to fewer prefill engines.

        None while the current split has room in both roles.
        """
        if self.current.worst < parameters.act_at:
            return None
        found = [
            (scored.worst, scored.prefill, role)
            for role, scored in self.towards.items()
            if self.current.worst - scored.worst >= parameters.movement_margin
        ]
        return min(found)[2] if found else None

    def candidates(self) -> tuple[Candidate, ...]:
        """The record of them, the present split first."""
        return tuple(scored.candidate(scored.worst) for scored in (self.current, *self.towards.values()))

    def wanting(self, parameters: Parameters) -> tuple[Guard, ...]:
        """What no split is better by enough for: the load of the present one, and what the best other one gains."""
        worst, act_at = self.current.worst, parameters.act_at
        asked = [Guard("act_at", worst >= act_at, worst, act_at)]
        if self.towards:
            gain, margin = worst - min(scored.worst for scored in self.towards.values()), parameters.movement_margin
            asked.append(Guard("movement_margin", gain >= margin, gain, margin))
        return tuple(asked)


class Reactive:
    """State: evidence window, settled run, departure, and the proposals since the last move."""

    name = "reactive"

    def __init__(self, settings: Settings, demand: Demand) -> None:
        self._settings = settings
        self._parameters = settings.controller.reactive
        self._thresholds = settings.controller.thresholds
        self._demand = demand
        self.step_s = self._parameters.step_s
        self.evidence = Evidence(self._parameters, demand)
        self.settled = Settled()
        self.departure = Departure(self._parameters, demand)
        self._shift_t = NEVER
        self._agreed: Role | None = None
        self._count = 0

    def propose(self, load: Load, donors: Donors, *, urgent: bool) -> Proposal:
        """The better adjacent split, if the rules let it. An urgent evaluation needs no confirmation."""
        t = load.t
        self.evidence.observe(t)
        adjacent = self.adjacent(load, donors)
        shift = self.shift(load, donors)
        departing = self.departure.follow(t, shift[0] if shift is not None else None, self.settled)
        better = adjacent.better(self._parameters)
        self.settled.observe(t, better=better is not None)
        candidates = adjacent.candidates()
        if departing is not None and departing.passed and shift is not None:
            target, shifted = shift
            reason = f"demand shifted: {describe(shifted.current, shifted.towards.get(target))}"
            return Proposal(shifted.candidates(), target, 1, (departing,), reason)
        if better is None:
            self._confirm(None, urgent=urgent, enough=1)
            return Proposal(candidates, None, 0, adjacent.wanting(self._parameters), describe(adjacent.current, None))
        rules = self.rules(load, better, adjacent.towards[better])
        agreed = better if all(rule.passed for rule in rules) else None
        enough = 1 if urgent or self.over_target(adjacent.current, better) else self._parameters.confirmations
        rules.append(self._confirm(agreed, urgent=urgent, enough=enough))
        reason = describe(adjacent.current, adjacent.towards[better])
        return Proposal(candidates, better, 1, tuple(rules), reason)

    def moved(self, t: float, target: Role, engines: int, *, own: bool) -> None:
        """Note a move, whoever made it. One from prefill to decode opens the evidence window again."""
        self._agreed, self._count = None, 0
        self.settled.interrupt()
        self.departure.moved(t, target, own=own)
        if target == "decode":
            self.evidence.open(t)

    # What is scored

    def adjacent(self, load: Load, donors: Donors) -> Adjacent:
        """The adjacent splits: prefill gains under the larger decode demand, decode gains under the present one."""
        return self._score(load, donors, {"prefill": self._larger_decode(load), "decode": load.offered}, load.offered)

    def shift(self, load: Load, donors: Donors) -> tuple[Role, Adjacent] | None:
        """The direction a shift asks for: demand differs, and makes an adjacent split better by the margin.

        With the splits as demand over the confirmation span scores them, which is what decides then.
        """
        if not self.departure.demand_differs(load.t):
            return None
        offered = self.departure.offered(load.t)
        adjacent = self._score(load, donors, {"prefill": offered, "decode": offered}, offered)
        target = adjacent.better(self._parameters)
        if target is None:
            return None
        self._shift_t = load.t
        return target, adjacent

    def _score(self, load: Load, donors: Donors, offered: dict[Role, Offered], current: Offered) -> Adjacent:
        towards: dict[Role, Scored] = {}
        for role, demand in offered.items():
            for change in donors.changes(role, 1):
                towards[role] = score(self._settings, load, change, demand)
        return Adjacent(score(self._settings, load, Change(), current), towards)

    def _larger_decode(self, load: Load) -> Offered:
        flow = self._demand.decode
        rate = max(flow.rate(flow.evidence_s, load.t), flow.rate(flow.window_s, load.t))
        return Offered(load.offered.prefill, rate * FLOW_S)

    # Rules

    def rules(self, load: Load, target: Role, best: Scored) -> list[Guard]:
        """The rules that a move towards `target` passes, apart from its confirmations."""
        rules = [self.no_opposite_departure(load.t, target)]
        closed = self.evidence.closed(load.t)
        if target == "prefill":
            rules.append(closed)
            if not self.steady(load.t):
                rules.append(self.stable_decode(load.t))
        elif closed.passed:
            rules.append(closed)
        else:
            rules.append(self.shrinkable(best))
        return rules

    def no_opposite_departure(self, t: float, target: Role) -> Guard:
        """Moves against an open departure wait until it closes."""
        against = self.departure.target not in (None, target)
        return Guard("departure", not against, 1.0 if against else 0.0, 0.0)

    def stable_decode(self, t: float) -> Guard:
        """Decode demand does not rise: the short horizon exceeds the long one by no more than the tolerance."""
        flow = self._demand.decode
        short, long = flow.rate(flow.evidence_s, t), flow.rate(flow.window_s, t)
        limit = long * (1 + self._parameters.demand_rise_tolerance)
        return Guard("demand_rise_tolerance", short <= limit, short, limit)

    def shrinkable(self, best: Scored) -> Guard:
        """Prefill stays so far below its target that an engine may leave while the evidence window is open."""
        return Guard("shrink", best.ttft <= self._thresholds.shrink, best.ttft, self._thresholds.shrink)

    def steady(self, t: float) -> bool:
        """Whether there was no shift for `evidence_span_s`."""
        return t - self._shift_t >= self._parameters.evidence_span_s

    def over_target(self, current: Scored, target: Role) -> bool:
        """Whether the role that would gain is already over `expand`: one proposal is enough then."""
        return (current.ttft if target == "prefill" else current.queue) > self._thresholds.expand

    def _confirm(self, agreed: Role | None, *, urgent: bool, enough: int) -> Guard:
        count = self._count if self._agreed == agreed else 0
        if agreed is not None:
            count += 1
        if not urgent:
            self._agreed, self._count = agreed, count
        return Guard("confirmations", count >= enough, float(count), float(enough))
