"""Which engines would move, in which order, and what each number of them changes.

The half-moved engine comes first (it still holds work of the role it goes to), then the emptiest; ties by id. An
engine that a guard holds comes after all others, so that a batch shrinks only when nobody else is there.
"""

from narwhal.control import guards
from narwhal.control.events import Role
from narwhal.control.load import able_in, by_role, pace, reference, speed
from narwhal.control.records import Guard
from narwhal.control.score import Change
from narwhal.control.state import Engine, Pool, Settings


class Donors:
    """The donors of one evaluation, in both directions."""

    def __init__(self, pool: Pool, settings: Settings, t: float) -> None:
        prefill, decode = by_role(pool)
        tpot_s = settings.slo.tpot_s
        self._base = reference(pool)
        self._occupancy = {engine.id: engine.occupancy(tpot_s) for engine in decode}
        self._tpot_s = tpot_s
        self.most = max(2, sum(engine.pin is None for engine in prefill + decode) // 4)
        """k: most engines of one decision."""

        def held(engine: Engine) -> bool:
            return not (guards.dwell(engine, settings, t).passed and guards.residents(engine, settings).passed)

        def to_prefill(engine: Engine) -> tuple[bool, bool, float, str]:
            return held(engine), not engine.prefills, self._occupancy[engine.id], engine.id

        def to_decode(engine: Engine) -> tuple[bool, bool, float, str]:
            return held(engine), not engine.streams, engine.backlog_s(t), engine.id

        self._order: dict[Role, list[Engine]] = {
            "prefill": sorted(filter(_movable, decode), key=to_prefill)[: self.most],
            "decode": sorted(filter(_movable, prefill), key=to_decode)[: self.most],
        }
        self._sources: dict[Role, list[Engine]] = {"prefill": decode, "decode": prefill}
        controller = settings.controller
        self._least: dict[Role, int] = {
            "prefill": max(controller.min_decode, 1),
            "decode": max(controller.min_prefill, 1),
        }
        """Engines that have to stay in the other role."""
        self._spare: dict[Role, int] = {
            "prefill": able_in(pool, "decode") - self._least["prefill"],
            "decode": able_in(pool, "prefill") - self._least["decode"],
        }

    def to(self, target: Role, count: int) -> list[Engine]:
        """The first `count` donors towards `target`; fewer where there are no more."""
        return self._order[target][: max(count, 0)]

    def available(self, target: Role) -> int:
        """How many engines could go to `target` without leaving the other role below its floor."""
        return max(min(len(self._order[target]), self._spare[target]), 0)

    def withheld(self) -> list[Guard]:
        """Why nobody can go to a role, where nobody can: the floor of the other one, or what holds each of its engines.

        Of roles that somebody can go to: nothing.
        """
        asked: list[Guard] = []
        for target, engines in self._sources.items():
            if self.available(target) > 0:
                continue
            if self._spare[target] <= 0:
                source, least = ("decode" if target == "prefill" else "prefill"), self._least[target]
                asked.append(Guard(f"min_{source}", False, self._spare[target] + least - 1.0, float(least)))
            held = (guard for engine in engines for guard in (guards.pin(engine, target), guards.lifecycle(engine)))
            asked += [guard for guard in held if not guard.passed]
        return asked

    def changes(self, target: Role, most: int) -> list[Change]:
        """What moving one, two, … donors towards `target` changes; at most `most` of them."""
        changes: list[Change] = []
        total = Change()
        for engine in self.to(target, min(most, self.available(target))):
            if target == "prefill":
                total = Change(
                    total.engines + 1,
                    total.speed + speed(engine, self._base),
                    total.occupancy + self._occupancy[engine.id],
                    total.pace + pace(engine, self._tpot_s),
                )
            else:
                total = Change(total.engines - 1, total.speed - speed(engine, self._base))
            changes.append(total)
        return changes


def _movable(engine: Engine) -> bool:
    """Whether an engine may be proposed at all: not pinned, and no lifecycle hold."""
    return engine.pin is None and engine.open
