"""Which engine holds which role, and when that changes: the one writer of role state."""

from collections import deque

from narwhal.control import floors, guards
from narwhal.control.commands import AnyCommand, Decided, MoveRole
from narwhal.control.demand import Demand
from narwhal.control.donors import Donors
from narwhal.control.events import Role
from narwhal.control.load import able, able_in, look
from narwhal.control.projection import Projection
from narwhal.control.proposal import Policy, Proposal
from narwhal.control.reactive import Reactive
from narwhal.control.records import Decision, Guard, Move
from narwhal.control.state import Engine, Pool, Settings

URGENT_S = 0.25
"""Least time between two urgent evaluations, in seconds."""
KEPT = 256
"""Decisions kept in memory."""
STAY_SAMPLE = 10
"""One of so many evaluations that found nothing better is reported."""
SAMPLED = ("step", "urgency", "floor")
"""Triggers of evaluations that nobody waits for an answer to."""


class Timer:
    """When something is due that happens every `interval_s`; drifts with neither late nor early calls."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._next_t = float("-inf")

    def retune(self, t: float, interval_s: float) -> None:
        """Be due every `interval_s` from now on, for the next time one interval after `t` at the latest."""
        self._interval_s = interval_s
        self._next_t = min(self._next_t, t + interval_s)

    def due(self, t: float) -> bool:
        """Whether it is due at `t`; if so, the next time is one interval later. A long gap is not made up for."""
        if t < self._next_t - self._interval_s / 100:
            return False
        regular_t = self._next_t + self._interval_s
        self._next_t = regular_t if regular_t > t else t + self._interval_s
        return True


class RoleController:
    """Decides about roles. Each method takes a time and returns commands; a time that runs backwards counts as now.

    `decisions` holds the last reported ones, newest last; `last` the latest of all, reported or not.
    """

    def __init__(self, settings: Settings, pool: Pool, demand: Demand) -> None:
        self.decisions: deque[Decision] = deque(maxlen=KEPT)
        self.last: Decision | None = None
        self._settings = settings
        self._pool = pool
        self._demand = demand
        self.policy = self._make_policy()
        self._monitor = Timer(settings.controller.monitor_interval_s)
        self._step = Timer(self.policy.step_s)
        self._urgent = Timer(URGENT_S)
        self._number = 0
        self._stays = 0
        self._to_decode_t = float("-inf")
        self._pending: dict[str, int] = {}

    @property
    def evaluations(self) -> int:
        """How many evaluations there were, reported or not: the number of the last."""
        return self._number

    def _make_policy(self) -> Policy:
        kind = Reactive if self._settings.controller.policy == "reactive" else Projection
        return kind(self._settings, self._demand)

    def retune(self, t: float, before: Settings) -> None:
        """The settings were changed; `before` is a copy of what they were.

        A policy whose rules are others begins anew: it has to find its evidence and confirmations under the new ones.
        """
        now = self._settings.controller
        if now != before.controller:
            self.policy = self._make_policy()
        t = self._demand.now(t)
        self._monitor.retune(t, now.monitor_interval_s)
        self._step.retune(t, self.policy.step_s)

    # What the controller does by itself

    def tick(self, t: float) -> list[AnyCommand]:
        """Time passed: repair a floor if one is broken, else evaluate when the policy's step has come."""
        t = self._demand.now(t)
        if not self._acts(t):
            return []
        commands: list[AnyCommand] = []
        if self._monitor.due(t):
            commands = self._repair(t)
        if self._step.due(t) and floors.broken(self._pool, self._settings) is None and not commands:
            commands = self._evaluate(t, "step")
        return commands

    def urgent(self, t: float) -> list[AnyCommand]:
        """A prompt will miss its target: evaluate now, out of turn and unconfirmed, at most four times a second."""
        t = self._demand.now(t)
        if not self._acts(t):
            return []
        if floors.broken(self._pool, self._settings) is not None:
            return []
        return self._evaluate(t, "urgency") if self._urgent.due(t) else []

    def _acts(self, t: float) -> bool:
        """Whether it may move engines by itself now: it is on, leads, and knows of each engine whether it is there."""
        on = self._settings.controller.enabled and not self._pool.frozen
        return on and not floors.unseen(self._pool, self._settings, t)

    def _evaluate(self, t: float, trigger: str) -> list[AnyCommand]:
        prefill, decode = self._pool.split()
        if not prefill or not decode:
            return []  # one role serves both phases: there is nothing to choose between
        unmeasured = self._unmeasured()
        if unmeasured is not None:
            return self._conclude(t, trigger, "stay", f"engine {unmeasured} has no profile: only floors are repaired")
        load = look(self._pool, self._settings, self._demand, t)
        donors = Donors(self._pool, self._settings, t)
        proposal = self.policy.propose(load, donors, urgent=trigger == "urgency")
        return self._answer(t, trigger, proposal, donors, load.inputs())

    def _answer(
        self, t: float, trigger: str, proposal: Proposal, donors: Donors, inputs: dict[str, float]
    ) -> list[AnyCommand]:
        """Take what the policy proposes through the guards."""
        rules, target = proposal.rules, proposal.target
        if target is None:
            asked = [*rules, *donors.withheld()]
            return self._conclude(t, trigger, "stay", proposal.reason, proposal=proposal, asked=asked, inputs=inputs)
        wanted = donors.to(target, proposal.engines)
        if proposal.held:
            moves = [Move(engine.id, engine.role, target) for engine in wanted]
            reason = _held(proposal.reason, rules)
            return self._conclude(t, trigger, "held", reason, moves, asked=rules, proposal=proposal, inputs=inputs)
        passed, asked = guards.shrink(wanted, target, self._settings, self._pool, t)
        asked = [*rules, *asked, *self._of_batch(t, to_decode=target == "decode")]
        moves = [Move(engine.id, engine.role, target) for engine in passed or wanted]
        outcome = self._outcome(asked, any_donor=bool(passed))
        reason = proposal.reason if outcome == "moved" else _held(proposal.reason, asked)
        commands = self._conclude(t, trigger, outcome, reason, moves, asked, proposal=proposal, inputs=inputs)
        if outcome == "moved":
            commands += self._carry_out(t, moves, own=True)
        return commands

    def _repair(self, t: float) -> list[AnyCommand]:
        """Give a role below its floor one engine."""
        repair = floors.repair(self._pool, self._settings, t)
        if repair is None:
            return []
        reason = f"{repair.target} has {repair.live} live engines, its floor is {repair.floor}"
        floor = Guard(f"min_{repair.target}", False, float(repair.live), float(repair.floor))
        asked = [floor, *repair.asked]
        if repair.donor is None:
            outcome = "held" if repair.asked else "stay"
            why = "; every engine that could go is held" if repair.asked else "; the other role cannot spare one"
            return self._conclude(t, "floor", outcome, reason + why, asked=asked)
        batch = [guards.hold(self._pool), guards.advisory(self._settings)]
        moves = [Move(repair.donor.id, repair.donor.role, repair.target)]
        outcome = self._outcome(batch, any_donor=True)
        commands = self._conclude(t, "floor", outcome, reason, moves, [*asked, *batch])
        if outcome == "moved":
            commands += self._carry_out(t, moves, own=False)
        return commands

    def _unmeasured(self) -> str | None:
        return next((e.id for _, e in sorted(self._pool.engines.items()) if e.live and not e.measured), None)

    # What the operator asks for

    def request_move(self, t: float, engine: str, role: Role) -> list[AnyCommand]:
        """Move one engine, if the guards let it. Answers with a decision in any case."""
        t = self._demand.now(t)
        donor = self._pool.engines.get(engine)
        if donor is None:
            return self._conclude(t, "operator", "held", f"no engine is called {engine}")
        if (donor.moving or donor.role) == role:
            return self._conclude(t, "operator", "stay", f"{engine} is a {role} engine already")
        left = able_in(self._pool, donor.role) - able(donor)
        floor = guards.floor(self._settings, donor.role, left)
        asked = [floor, *guards.cohort(donor, role, self._pool)]
        return self._request(t, [(donor, role)], asked, f"move {engine} to {role}")

    def request_swap(self, t: float, a: str, b: str) -> list[AnyCommand]:
        """Exchange the roles of two engines in one decision: both move, or none does."""
        t = self._demand.now(t)
        first, second = self._pool.engines.get(a), self._pool.engines.get(b)
        if first is None or second is None:
            return self._conclude(t, "operator", "held", f"no engine is called {a if first is None else b}")
        if first.role == second.role:
            return self._conclude(t, "operator", "stay", f"{a} and {b} are both {first.role} engines")
        return self._request(t, [(first, second.role), (second, first.role)], [], f"swap {a} and {b}")

    def _request(
        self, t: float, wanted: list[tuple[Engine, Role]], floor: list[Guard], reason: str
    ) -> list[AnyCommand]:
        asked = [guard for engine, role in wanted for guard in guards.of_engine(engine, role, self._settings, t)]
        asked += [*floor, *self._of_batch(t, to_decode=any(role == "decode" for _, role in wanted))]
        moves = [Move(engine.id, engine.role, role) for engine, role in wanted]
        outcome = self._outcome(asked, any_donor=all(guard.passed for guard in asked if guard.engine))
        commands = self._conclude(
            t, "operator", outcome, reason if outcome == "moved" else _held(reason, asked), moves, asked
        )
        if outcome == "moved":
            commands += self._carry_out(t, moves, own=False)
        return commands

    def set_hold(self, t: float, on: bool, reason: str) -> list[AnyCommand]:
        """Freeze role moves, or let them go on; answers with a decision that says so."""
        if self._pool.frozen:
            return self.refuse(t, "hold role moves" if on else "let role moves go on", [guards.lease(self._pool)])
        self._pool.hold = on
        self._pool.hold_reason = reason if on else ""
        text = f"role moves are held: {reason}" if on else "role moves go on"
        return self._conclude(self._demand.now(t), "operator", "stay", text, asked=[guards.hold(self._pool)])

    def refuse(self, t: float, what: str, asked: list[Guard]) -> list[AnyCommand]:
        """The answer to an order that guards held: nothing was changed."""
        return self._conclude(self._demand.now(t), "operator", "held", _held(what, asked), asked=asked)

    def stand_in(self, t: float, what: str, moves: list[Move], asked: list[Guard]) -> list[AnyCommand]:
        """Move engines for an order that would break a floor otherwise. Like floor repair it waits for no cooldown."""
        t, batch = self._demand.now(t), [guards.hold(self._pool), guards.advisory(self._settings)]
        outcome = self._outcome(batch, any_donor=True)
        reason = what if outcome == "moved" else _held(what, batch)
        commands = self._conclude(t, "operator", outcome, reason, moves, [*asked, *batch])
        return commands + self._carry_out(t, moves, own=False) if outcome == "moved" else commands

    def record(self, t: float, what: str) -> list[AnyCommand]:
        """The answer to an order that was carried out, and moved nothing."""
        return self._conclude(self._demand.now(t), "operator", "stay", what)

    # What becomes of a move

    def moved(self, t: float, engine: str, role: Role, epoch: int) -> list[AnyCommand]:
        """The role driver carried a move out. An answer to another move than the last one changes nothing."""
        moving = self._settle(engine, epoch)
        if moving is not None:
            moving.role = role
            moving.role_since_t = self._demand.now(t)
        return []

    def move_failed(self, t: float, engine: str, role: Role, epoch: int, reason: str) -> list[AnyCommand]:
        """The role driver could not carry a move out: the engine keeps its role."""
        if self._settle(engine, epoch) is None:
            return []
        text = f"{engine} could not become a {role} engine: {reason}"
        return self._conclude(self._demand.now(t), "driver", "stay", text)

    def forget_moves(self) -> None:
        """Nobody will say what became of the moves under way: engines keep the roles that they have."""
        self._pending.clear()
        for engine in self._pool.engines.values():
            engine.moving = None

    def _settle(self, engine: str, epoch: int) -> Engine | None:
        if self._pending.get(engine) != epoch:
            return None
        del self._pending[engine]
        found = self._pool.engines.get(engine)
        if found is not None:
            found.moving = None
        return found

    def _carry_out(self, t: float, moves: list[Move], *, own: bool) -> list[AnyCommand]:
        commands: list[AnyCommand] = []
        for move in moves:
            self._pool.epoch += 1
            self._pool.engines[move.engine].moving = move.target
            self._pending[move.engine] = self._pool.epoch
            commands.append(MoveRole(move.engine, move.target, self._pool.epoch, self._number))
        for target in sorted({move.target for move in moves}):
            self.policy.moved(t, target, sum(move.target == target for move in moves), own=own)
        if any(move.target == "decode" for move in moves):
            self._to_decode_t = t
        return commands

    # Guards of a whole decision, and its record

    def _of_batch(self, t: float, *, to_decode: bool) -> list[Guard]:
        asked = [guards.lease(self._pool)] if self._pool.frozen else []
        asked += [guards.hold(self._pool), guards.advisory(self._settings)]
        if to_decode:
            asked.append(guards.cooldown(self._settings, t, self._to_decode_t))
        return asked

    def _outcome(self, asked: list[Guard], *, any_donor: bool) -> str:
        """`moved` where all passed that concern the whole batch and a donor is left, else `advised` or `held`."""
        failed = {guard.name for guard in asked if not guard.passed and not guard.engine}
        if any_donor and not failed:
            return "moved"
        return "advised" if any_donor and failed == {"advisory"} else "held"

    def _conclude(
        self,
        t: float,
        trigger: str,
        outcome: str,
        reason: str,
        moves: list[Move] | None = None,
        asked: list[Guard] | tuple[Guard, ...] = (),
        *,
        proposal: Proposal | None = None,
        inputs: dict[str, float] | None = None,
    ) -> list[AnyCommand]:
        """Number and keep the record; report it unless it is one of many that found nothing better."""
        self._number += 1
        prefill, decode = self._pool.split()
        decision = Decision(
            id=self._number,
            t=t,
            trigger=trigger,
            policy=self.policy.name,
            prefill=prefill,
            decode=decode,
            outcome=outcome,
            reason=reason,
            candidates=proposal.candidates if proposal else (),
            guards=tuple(asked),
            moves=tuple(moves or ()),
            inputs=inputs or {},
        )
        self.last = decision
        if outcome == "stay" and trigger in SAMPLED:
            self._stays += 1
            if self._stays % STAY_SAMPLE != 1:
                return []
        self.decisions.append(decision)
        return [Decided(decision)]


_SWITCHES = {
    "lease": "the router cannot prove that it leads",
    "hold": "the operator holds role moves",
    "advisory": "the controller only advises",
    "pin": "it is pinned to its role",
    "unadmitted": "it is not admitted yet",
    "ejected": "it is ejected",
    "draining": "it is draining",
    "suspected": "it is suspected to be down",
    "moving": "it is on its way to another role",
    "departure": "a departure to the other role is open",
}
"""What guards say that are on or off, where others have a number and a limit."""


def _held(reason: str, asked: list[Guard] | tuple[Guard, ...]) -> str:
    """The reason, and the first guard that did not pass: its numbers, or in words where it has none."""
    guard = next((guard for guard in asked if not guard.passed), None)
    if guard is None:
        return reason
    where = f" of {guard.engine}" if guard.engine else ""
    said = f"{guard.value:.3g} against {guard.limit:.3g}"
    if (guard.value, guard.limit) == (1.0, 0.0):
        said = _SWITCHES.get(guard.name, said)
    return f"{reason}; held by {guard.name}{where}: {said}"
