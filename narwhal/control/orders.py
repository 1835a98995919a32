"""What the operator asks for about engines: drains, readmissions, pins. Each is done as a whole, or changes nothing.

Every order is answered with a decision, as moves are: `held` with the guards that held it, else what was done.
"""

from collections.abc import Collection

from narwhal.control import drains, floors, guards
from narwhal.control.commands import AnyCommand, Decided, EngineChanged, MoveRole, ProbeEngine
from narwhal.control.events import DrainSet, PinSet, ReadmitRequested
from narwhal.control.load import able, role_of
from narwhal.control.records import Guard, Move
from narwhal.control.roles import RoleController
from narwhal.control.state import Engine, Pool, Settings


class Orders:
    """Each method returns commands in order, a `Decided` among them."""

    def __init__(self, settings: Settings, pool: Pool, roles: RoleController) -> None:
        self._settings = settings
        self._pool = pool
        self._roles = roles

    def drain(self, event: DrainSet) -> list[AnyCommand]:
        """Drain engines, unless a role would be left below its floor by it; or end their drains."""
        what = f"{'drain' if event.on else 'end the drain of'} {_names(event.engines)}"
        engines, refusal = self._named(event.t, event.engines, what)
        if refusal:
            return refusal
        moved: list[AnyCommand] = []
        if event.on:
            asked = self.floors(event.engines)
            if not all(guard.passed for guard in asked):
                moved = self._stand_in(event, what, asked)
                if not any(isinstance(command, MoveRole) for command in moved):
                    return moved
        until_t = event.until_t if event.until_t >= 0 else drains.NEVER
        commands: list[AnyCommand] = []
        for engine in engines:
            if event.on:
                commands += drains.begin(engine, event.t, until_t, stays=event.stays)
            else:
                commands += drains.end(engine, event.t)
        return [*commands, *(moved or self._roles.record(event.t, what))]

    def _stand_in(self, event: DrainSet, what: str, asked: list[Guard]) -> list[AnyCommand]:
        """Have engines that stay take over the role whose floor would break, where that is wanted and can be."""
        engines = floors.stand_ins(self._pool, self._settings, event.engines, event.t) if event.moves else None
        if not engines or not asked[-1].passed:
            return self._roles.refuse(event.t, what, asked)
        moves = [
            Move(engine.id, engine.role, "decode" if engine.role == "prefill" else "prefill") for engine in engines
        ]
        named = f"{_names([move.engine for move in moves])} as {moves[0].target}"
        return self._roles.stand_in(event.t, f"{what}, with {named} in their place", moves, asked)

    def readmit(self, event: ReadmitRequested) -> list[AnyCommand]:
        """End the drains of engines, and try those that are out without waiting, whatever the limit on restarts.

        They have to prove themselves all the same.
        """
        what = f"readmit {_names(event.engines)}"
        engines, refusal = self._named(event.t, event.engines, what)
        if refusal:
            return refusal
        commands: list[AnyCommand] = []
        for engine in engines:
            commands += drains.end(engine, event.t)
            if engine.ejected:
                vitals = engine.vitals
                vitals.not_before_t, vitals.ejections = event.t, 0
                vitals.starts_t = []
                commands.append(ProbeEngine(engine.id))
        return [*commands, *self._roles.record(event.t, what)]

    def pin(self, event: PinSet) -> list[AnyCommand]:
        """Bind an engine to a role, and move it there; or free it."""
        t, pin = event.t, event.pin
        what = f"pin {event.engine} to {pin}" if pin else f"free {event.engine} from its pin"
        engines, refusal = self._named(t, (event.engine,), what)
        if refusal:
            return refusal
        engine = engines[0]
        before, engine.pin = engine.pin, pin
        said = EngineChanged(engine.id, "pinned" if pin else "unpinned", f"to {pin}" if pin else "by the operator")
        changes: list[AnyCommand] = [said] if before != pin else []
        if pin is None or pin == (engine.moving or engine.role):
            return [*changes, *self._roles.record(t, what)]
        commands = self._roles.request_move(t, engine.id, pin)
        if not any(isinstance(command, Decided) and command.decision.outcome == "moved" for command in commands):
            engine.pin = before
            return commands
        return [*changes, *commands]

    def floors(self, gone: Collection[str]) -> list[Guard]:
        """What the floors say of live engines that get no work any more: those that stay and are able suffice."""
        asked: list[Guard] = []
        live = [engine for engine in self._pool.engines.values() if engine.live]
        for role in ("prefill", "decode"):
            own = [engine for engine in live if role_of(engine) == role]
            if any(engine.id in gone for engine in own):
                left = sum(engine.id not in gone and able(engine) for engine in own)
                asked.append(guards.floor(self._settings, role, left))
        left = sum(engine.id not in gone for engine in live)
        return [*asked, Guard("live", left > 0, float(left), 1.0)] if left < len(live) else asked

    def _named(self, t: float, names: Collection[str], what: str) -> tuple[list[Engine], list[AnyCommand]]:
        """The engines, or why nothing is done."""
        if self._pool.frozen:
            return [], self._roles.refuse(t, what, [guards.lease(self._pool)])
        unknown = [name for name in names if name not in self._pool.engines]
        if unknown:
            return [], self._roles.refuse(t, f"{what}; no engine is called {unknown[0]}", [])
        return [self._pool.engines[name] for name in dict.fromkeys(names)], []


def _names(engines: Collection[str]) -> str:
    return ", ".join(dict.fromkeys(engines))
