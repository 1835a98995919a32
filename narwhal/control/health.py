"""Which engines may have work: joins, looks, ejection, readmission, drains."""

from narwhal.control.commands import AnyCommand, EngineChanged, ProbeEngine
from narwhal.control.events import (
    DrainSet,
    EngineDown,
    EngineJoined,
    EngineLeft,
    EngineObserved,
    EngineRetired,
    EngineRevised,
    EngineUp,
    LegFailed,
)
from narwhal.control.state import Engine, Pool, Settings

STRIKES = ("connection", "timeout", "stream")
"""Causes that count against an engine; a status or a handoff may be its peer's or the request's fault."""


class Health:
    """The standing of engines. Each method returns commands in order."""

    def __init__(self, settings: Settings, pool: Pool) -> None:
        self.settings = settings
        self.pool = pool
        self.leaving: dict[str, float] = {}
        """Engines that were taken out of the fleet file and still have requests, with the time they may take."""

    def joined(self, event: EngineJoined) -> list[AnyCommand]:
        """A new engine; it waits for its first healthy look. Joining again changes nothing."""
        if event.engine in self.pool.engines:
            return []
        engine = Engine(event.engine, event.pin or event.role, event.curves)
        engine.pin = event.pin
        engine.fingerprint = event.fingerprint
        engine.device = event.device
        self.pool.measure(engine, event.curves, measured=event.measured)
        self.pool.engines[engine.id] = engine
        return [EngineChanged(engine.id, "joined", f"as {engine.role}"), ProbeEngine(engine.id)]

    def left(self, event: EngineLeft) -> list[AnyCommand]:
        """An engine is gone."""
        if self.pool.engines.pop(event.engine, None) is None:
            return []
        self.leaving.pop(event.engine, None)
        return [EngineChanged(event.engine, "left", "taken out of the fleet")]

    def revised(self, event: EngineRevised) -> list[AnyCommand]:
        """The fleet file says other things of an engine. New curves are corrected from the beginning."""
        engine = self.pool.engines.get(event.engine)
        if engine is None:
            return []
        engine.pin, engine.device = event.pin, event.device
        known = engine.curves if engine.meter is None else engine.meter.learned.prior
        if (known, engine.measured) != (event.curves, event.measured):
            engine.prefill_scale = 1.0
            self.pool.measure(engine, event.curves, measured=event.measured)
        return []

    def retired(self, event: EngineRetired) -> list[AnyCommand]:
        """An engine was taken out of the fleet file: nothing new is sent to it, what it has may finish."""
        engine = self.pool.engines.get(event.engine)
        if engine is None or engine.leaves_t is not None:
            return []
        engine.leaves_t = self.leaving[engine.id] = event.until_t
        return [EngineChanged(engine.id, "leaving", "taken out of the fleet; its requests may finish")]

    def up(self, event: EngineUp) -> list[AnyCommand]:
        """A healthy look. The first admits the engine; an ejected one or a new generation needs several."""
        engine = self.pool.engines.get(event.engine)
        if engine is None:
            return []
        commands: list[AnyCommand] = []
        if event.generation != engine.generation:
            engine.told_id = ""
        if engine.generation and event.generation != engine.generation:
            engine.healthy = 0
            commands += self._eject(engine, "restarted: another process generation")
        engine.generation = event.generation
        engine.failures = 0
        engine.suspected = False
        if engine.ejected:
            engine.healthy += 1
            if engine.healthy < self.settings.recovery.readmit_after:
                return commands
            engine.ejected = False
            commands.append(EngineChanged(engine.id, "readmitted", f"{engine.healthy} healthy looks"))
        engine.admitted = True
        return commands

    def down(self, event: EngineDown) -> list[AnyCommand]:
        """A failed look. The first suspects the engine, a refused connection or several eject it."""
        engine = self.pool.engines.get(event.engine)
        if engine is None:
            return []
        self._doubt(engine, event.cause)
        return self._strike(engine, event.cause, hard=event.hard)

    def leg_failed(self, event: LegFailed) -> list[AnyCommand]:
        """A failed leg is a strike where its cause is the engine's own, and a reason to look in any case."""
        engine = self.pool.engines.get(event.engine)
        if engine is None or event.cause in ("client", "overload"):
            return []
        self._doubt(engine, event.cause)
        commands = self._strike(engine, event.cause, hard=False) if event.cause in STRIKES else []
        return [*commands, ProbeEngine(engine.id)]

    def named(self, engine_id: str, told_id: str) -> list[AnyCommand]:
        """Leg 1's answer named its process; another id than before is a restart that no look has seen yet."""
        engine = self.pool.engines.get(engine_id)
        if engine is None or not told_id or told_id == engine.told_id:
            return []
        restarted, engine.told_id = bool(engine.told_id), told_id
        if not restarted:
            return []
        engine.suspected = True
        return [ProbeEngine(engine.id)]

    def _doubt(self, engine: Engine, cause: str) -> None:
        """A broken connection makes the generation unknown, even of the last of a role: it is read again first."""
        if cause == "connection" and engine.admitted:
            engine.suspected = True

    def _strike(self, engine: Engine, cause: str, *, hard: bool) -> list[AnyCommand]:
        engine.healthy = 0
        engine.failures += 1
        if engine.ejected or not engine.admitted:
            return []
        if not hard and self._last_of_role(engine):
            return []  # soft evidence does not take a role its last engine
        engine.suspected = True
        if hard or engine.failures >= self.settings.recovery.eject_after:
            return self._eject(engine, f"{cause}, {engine.failures} in a row" if not hard else f"{cause} refused")
        return []

    def _eject(self, engine: Engine, reason: str) -> list[AnyCommand]:
        if engine.ejected:
            return []
        engine.ejected = True
        return [EngineChanged(engine.id, "ejected", reason)]

    def _last_of_role(self, engine: Engine) -> bool:
        return not any(
            other.open and other.role == engine.role for other in self.pool.engines.values() if other is not engine
        )

    def observed(self, event: EngineObserved) -> list[AnyCommand]:
        """What an engine's metrics say of its load; the excess over ours is foreign."""
        engine = self.pool.engines.get(event.engine)
        if engine is not None:
            engine.observe(event.running + event.waiting, event.kv_used_tokens)
        return []

    def drain(self, event: DrainSet) -> list[AnyCommand]:
        """The operator drains an engine or ends its drain."""
        engine = self.pool.engines.get(event.engine)
        if engine is None or engine.draining == event.on:
            return []
        engine.draining = event.on
        return [EngineChanged(engine.id, "draining" if event.on else "undrained", "by the operator")]
