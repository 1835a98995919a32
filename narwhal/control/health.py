"""Which engines may have work: joins, looks, evidence, ejection, readmission.

The rules stand in files of their own: `strikes` (evidence and its decay), `suspicion` (whose fault it is),
`generations` (lives, readmission), `links` and `canaries` (pairs), `drift` (pace). Here they meet.
"""

from narwhal.control import cohorts
from narwhal.control.canaries import Canaries
from narwhal.control.commands import AnyCommand, EngineChanged, ProbeEngine
from narwhal.control.drift import Drift
from narwhal.control.events import (
    EngineDown,
    EngineJoined,
    EngineLeft,
    EngineObserved,
    EngineRetired,
    EngineRevised,
    EngineUp,
    LegFailed,
    PairTried,
)
from narwhal.control.generations import Generations
from narwhal.control.links import RETRY, Links
from narwhal.control.standing import changed, eject, last_of_role, most_misses
from narwhal.control.state import Engine, Pool, Request, Settings
from narwhal.control.strikes import OWN, strike
from narwhal.control.suspicion import Case, Suspicion, Verdict, guilty
from narwhal.control.trials import Trial, Trials

ENOUGH = 0.5
"""By so much less than `recovery.eject_after` strikes suffice: they decay while they gather."""


class Health:
    """The standing of engines. Each method returns commands in order."""

    def __init__(self, settings: Settings, pool: Pool) -> None:
        self.settings = settings
        self.pool = pool
        self.trials = Trials(settings, pool)
        self.links = Links(settings, pool, self.trials)
        self.suspicion = Suspicion(pool, self.trials)
        self.generations = Generations(settings, pool, self.links, self.trials)
        self.canaries = Canaries(settings, pool, self.links, self.trials)
        self.drift = Drift(settings, pool)
        self.leaving: dict[str, float] = {}
        """Engines that were taken out of the fleet file and still have requests, with the time they may take."""

    # Members

    def joined(self, event: EngineJoined) -> list[AnyCommand]:
        """A new engine; it waits for its first healthy look. Joining again changes nothing."""
        if event.engine in self.pool.engines:
            return []
        engine = Engine(event.engine, event.pin or event.role, event.curves)
        engine.pin = engine.file_pin = event.pin
        engine.vitals.form = event.fingerprint
        engine.device = event.device
        self.pool.measure(engine, event.curves, measured=event.measured)
        self.pool.engines[engine.id] = engine
        cohorts.settle(self.pool)
        return [changed(engine, event.t, "joined", f"as {engine.role}"), ProbeEngine(engine.id)]

    def left(self, event: EngineLeft) -> list[AnyCommand]:
        """An engine is gone."""
        if self.pool.engines.pop(event.engine, None) is None:
            return []
        self.leaving.pop(event.engine, None)
        self.generations.lost(event.engine)
        self.canaries.forget(event.engine)
        commands = self.suspicion.explained(event.t, event.engine)
        self.links.left(event.engine)
        cohorts.settle(self.pool)
        return [*commands, EngineChanged(event.engine, "left", "taken out of the fleet")]

    def revised(self, event: EngineRevised) -> list[AnyCommand]:
        """The fleet file says other things of an engine. New curves are corrected from the beginning."""
        engine = self.pool.engines.get(event.engine)
        if engine is None:
            return []
        engine.device = event.device
        if event.pin != engine.file_pin:  # otherwise what the operator said since then counts
            engine.pin = engine.file_pin = event.pin
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
        return [changed(engine, event.t, "leaving", "taken out of the fleet; its requests may finish")]

    def thawed(self, t: float) -> list[AnyCommand]:
        """The lease is proven: engines that answered first while it was not may have work now."""
        return [
            command
            for engine in self.pool.engines.values()
            if engine.generation and not engine.admitted and not engine.ejected and not engine.vitals.misses
            for command in self.generations.begun(t, engine)
        ]

    # Looks

    def up(self, event: EngineUp) -> list[AnyCommand]:
        """A healthy look. The first one admits an engine; a new generation, and one that is out, is readmitted."""
        engine = self.pool.engines.get(event.engine)
        if engine is None:
            return []
        vitals = engine.vitals
        vitals.misses, vitals.seen_t = 0, event.t
        commands: list[AnyCommand] = []
        if event.generation != engine.generation:
            engine.told_id = ""
            if engine.generation and engine.admitted:
                self.canaries.forget(engine.id)
                commands += self.suspicion.explained(event.t, engine.id)
                commands += self.generations.started(event.t, engine)
        engine.generation = event.generation
        if engine.suspected:
            engine.suspected = False
            commands.append(EngineChanged(engine.id, "cleared", "it answers"))
        if engine.ejected:
            return commands + self.generations.look(event.t, engine)
        if not engine.admitted and not self.pool.frozen:
            commands += self.generations.begun(event.t, engine)
        return commands

    def down(self, event: EngineDown) -> list[AnyCommand]:
        """A failed look. The first suspects the engine, a refused connection or several eject it."""
        engine = self.pool.engines.get(event.engine)
        if engine is None:
            return []
        vitals, recovery = engine.vitals, self.settings.recovery
        if event.cause == "timeout" and event.t - engine.heard_t < recovery.probe_timeout_s / 2:
            return []  # it is late, and not silent: tokens came while it was waited for
        vitals.healthy = 0
        vitals.misses += 1
        self.generations.lost(engine.id)
        if engine.ejected or not engine.admitted:
            return []
        commands = self.suspicion.explained(event.t, engine.id)
        silent = event.cause in ("timeout", "connection") and vitals.misses >= most_misses(self.settings)
        if event.hard or silent or vitals.misses >= recovery.eject_after:
            reason = f"{event.cause} refused" if event.hard else f"{event.cause}, {vitals.misses} looks in a row"
            out = eject(self.pool, self.settings, engine, event.t, reason, soft=not (event.hard or silent))
            if out:
                return commands + out
        if not engine.suspected and (event.cause == "connection" or not last_of_role(self.pool, engine)):
            engine.suspected = True
            commands.append(changed(engine, event.t, "suspected", f"{event.cause} at a look"))
        return commands

    def observed(self, event: EngineObserved) -> list[AnyCommand]:
        """What an engine's metrics say: the load beyond ours is foreign; its pace; KV that was read too late."""
        engine = self.pool.engines.get(event.engine)
        if engine is None:
            return []
        engine.observe(event.running + event.waiting, event.kv_used_tokens)
        commands = self.drift.observed(event, engine)
        if self.drift.stands_still(event, engine):
            commands += self.suspicion.open(event.t, engine.id, engine.id, "no token")
        late, vitals = event.late_notifications, engine.vitals
        if late > vitals.late >= 0:
            vitals.alarms += late - vitals.late
            said = f"{late - vitals.late} requests read KV from it that it had freed: their answers may be wrong"
            commands.append(EngineChanged(engine.id, "alarm", said))
        vitals.late = late if late >= 0 else vitals.late
        return commands

    # Evidence of requests

    def leg_failed(self, event: LegFailed, request: Request | None) -> list[AnyCommand]:
        """A failed leg: whom it speaks against, and a look at its engine in any case."""
        engine = self.pool.engines.get(event.engine)
        if engine is None or event.cause in ("client", "overload"):
            return []
        commands: list[AnyCommand] = [ProbeEngine(engine.id)]
        producer = request.prefill_engine if request is not None and event.leg == "decode" else ""
        if producer and not event.visible:
            self.links.failed(event.t, producer, engine.id)
        if event.cause == "status" or event.status >= 500:
            return commands + self._accused(event, request, producer)
        if event.cause == "connection" and engine.admitted:
            commands += self._doubted(event.t, engine)
        if event.cause in ("timeout", "handoff") and producer and not event.visible:
            return commands + self.suspicion.open(event.t, producer, engine.id, event.cause)
        return commands + self._strike(event.t, engine, event.cause)

    def _doubted(self, t: float, engine: Engine) -> list[AnyCommand]:
        """A connection broke: the generation is unknown now, even of the last of a role. It is read again first."""
        if engine.suspected:
            return []
        engine.suspected = True
        return [changed(engine, t, "questioned", "a connection to it broke")]

    def _accused(self, event: LegFailed, request: Request | None, producer: str) -> list[AnyCommand]:
        """An engine answered with a 5xx. Whose fault it is, the next engine tells (`vindicated`, `unresolved`)."""
        if event.visible or request is None:
            return self.suspicion.open(event.t, event.engine, event.engine, "error in a stream")
        before = request.accused
        request.accused += ((producer, event.engine),)
        if producer and any(producer == other for other, _ in before):
            return self.suspicion.open(event.t, producer, event.engine, "status")  # one producer, two consumers
        return []

    def vindicated(self, t: float, request: Request) -> list[AnyCommand]:
        """A request that engines had failed with a 5xx is served by another: it was not to blame, they are."""
        accused, request.accused = request.accused, ()
        commands: list[AnyCommand] = []
        for producer, name in accused:
            engine = self.pool.engines.get(name)
            if producer:
                commands += self.suspicion.open(t, producer, name, "status")
            elif engine is not None:
                commands += self._strike(t, engine, "status")
        return commands

    def unresolved(self, t: float, request: Request) -> list[AnyCommand]:
        """A request is over that one engine alone had failed: probes decide. Two would have blamed the request."""
        if len(request.accused) != 1:
            return []
        producer, engine = request.accused[0]
        return self.suspicion.open(t, producer or engine, engine, "status")

    def _strike(self, t: float, engine: Engine, cause: str) -> list[AnyCommand]:
        if cause not in OWN or engine.ejected or not engine.admitted:
            return []
        recovery = self.settings.recovery
        counted = strike(engine, t, cause, recovery.strike_half_life_s)
        if counted <= recovery.eject_after - ENOUGH:
            return []
        return eject(self.pool, self.settings, engine, t, f"{counted:.1f} strikes, the last for {cause}", soft=True)

    # Probes

    def tried(self, event: PairTried) -> list[AnyCommand]:
        """A handoff was tried: its owner goes on with it."""
        trial = self.trials.ended(event.number)
        if trial is None:
            return []
        self.links.seen(event)
        return self._ended(trial, event)

    def _ended(self, trial: Trial, event: PairTried) -> list[AnyCommand]:
        if trial.purpose == "readmit":
            return self.generations.tried(event.t, trial.owner, event.outcome)
        if trial.purpose == "canary":
            commands = self.canaries.ended(event, retry=trial.owner == RETRY)
            if trial.owner != RETRY and event.outcome in ("leg_1", "leg_2", "reference"):
                side = {"leg_1": event.producer, "reference": event.consumer}.get(event.outcome)
                commands += self.suspicion.open(event.t, side or event.producer, side or event.consumer, "canary")
            return commands
        commands, case, verdict = self.suspicion.tried(event.t, trial.owner, event.number, event.outcome)
        return commands + self._sentence(event.t, case, verdict)

    def _sentence(self, t: float, case: Case | None, verdict: Verdict) -> list[AnyCommand]:
        """What follows from a verdict. A request and a probe failed alike: no further strikes are waited for."""
        if case is None:
            return []
        if verdict == "link":
            reason = f"{case.cause}; both engines hand over KV with others"
            return self.links.sever(t, case.producer, case.consumer, reason)
        engine = guilty(self.pool, case, verdict)
        if engine is None or engine.ejected:
            return []
        said = "a probe failed too" if case.producer == case.consumer else f"it fails probes as {verdict}"
        reason = f"{case.cause}, and {said}"
        strike(engine, t, case.cause, self.settings.recovery.strike_half_life_s)
        return eject(self.pool, self.settings, engine, t, reason, soft=True)

    def tick(self, t: float) -> list[AnyCommand]:
        """What is due: tries that nobody reported, pairs that are out, the next canary."""
        commands: list[AnyCommand] = []
        for number, trial in self.trials.overdue(t):
            self.trials.ended(number)
            commands += self._ended(trial, PairTried(t, number, trial.producer, trial.consumer, "untold"))
        self.suspicion.forget(t)
        if self.pool.frozen:
            return commands  # whoever leads looks at the links
        return commands + self.links.tick(t) + self.canaries.due(t)
