"""Lives of engines: a new one, and one that was out, has no work until it has proven itself again.

Readmission goes by stages: healthy looks, contract and model, a completion, KV both ways with a peer, a healthy look
again. Whatever fails is tried anew from the beginning; nothing is restarted for it.
"""

from dataclasses import dataclass
from typing import Literal

from narwhal.control import cohorts, drains
from narwhal.control.commands import AnyCommand, CheckEngine, EngineChanged, ProbeEngine
from narwhal.control.events import EngineChecked, Outcome
from narwhal.control.links import Links
from narwhal.control.standing import changed, eject
from narwhal.control.state import Engine, Pool, Settings
from narwhal.control.strikes import forgive
from narwhal.control.trials import Trials

Stage = Literal["check", "completion", "produce", "consume", "look"]
STAGE_S = 60.0
"""How long a stage may take; then readmission begins anew."""
MOST_PEERS = 2
"""Peers that an engine is tried with before it is refused."""
_SAID = {
    "completion": "it does not complete a prompt",
    "produce": "{peer} cannot read KV from it",
    "consume": "it cannot read KV from {peer}",
}


@dataclass(slots=True)
class Readmission:
    """How far an engine has come."""

    generation: str
    since_t: float
    stage: Stage = "check"
    peer: str = ""
    tried: tuple[str, ...] = ()
    """Peers that a handoff failed with."""
    note: str = ""
    """What was not tried, and why."""


class Generations:
    """New lives, and the way back. Methods return commands in order."""

    def __init__(self, settings: Settings, pool: Pool, links: Links, trials: Trials) -> None:
        self.settings = settings
        self.pool = pool
        self.links = links
        self.trials = trials
        self.under_way: dict[str, Readmission] = {}

    def begun(self, t: float, engine: Engine) -> list[AnyCommand]:
        """An engine of which no life was known before may have work: there is nothing to compare it with."""
        engine.admitted, engine.vitals.reason, engine.vitals.since_t = True, "", t
        engine.vitals.admitted = engine.generation
        return [CheckEngine(engine.id)]

    def started(self, t: float, engine: Engine) -> list[AnyCommand]:
        """Another process answers: it has no work until it is readmitted, and what was seen of the former is void."""
        window_s = self.settings.recovery.restarts.window_s
        asked_for = engine.drain.done  # it was stopped on purpose
        starts = [at for at in engine.vitals.starts_t if t - at < window_s]
        engine.vitals.starts_t = starts if asked_for else [*starts, t]
        engine.vitals.healthy = 0
        engine.vitals.begin_anew()
        forgive(engine)
        self.under_way.pop(engine.id, None)
        commands = eject(self.pool, self.settings, engine, t, "restarted: another process generation", soft=False)
        engine.vitals.not_before_t = t
        return commands + self.links.restarted(t, engine)

    def look(self, t: float, engine: Engine) -> list[AnyCommand]:
        """A healthy look at an engine that is out."""
        engine.vitals.healthy += 1
        if self.pool.frozen and engine.generation != engine.vitals.admitted:
            return []  # the role map says which lives may have work, and it cannot be written now
        way = self.under_way.get(engine.id)
        if way is not None:
            if way.stage == "look":
                return self._readmit(t, engine, way)
            if t - way.since_t > STAGE_S:
                return self._refuse(t, engine, f"stage {way.stage} took more than {STAGE_S:g} s")
            return []
        recovery = self.settings.recovery
        if engine.vitals.healthy < recovery.readmit_after or t < engine.vitals.not_before_t:
            return []
        starts = [at for at in engine.vitals.starts_t if t - at < recovery.restarts.window_s]
        if len(starts) > recovery.restarts.most:
            return self._say(t, engine, f"it started {len(starts)} times in {recovery.restarts.window_s:g} s")
        self.under_way[engine.id] = Readmission(engine.generation, t)
        return [CheckEngine(engine.id)]

    def lost(self, engine: str) -> None:
        """A look failed, or the engine left: the way back begins anew."""
        self.under_way.pop(engine, None)

    def checked(self, event: EngineChecked) -> list[AnyCommand]:
        """What it says of itself is known."""
        engine, way = self.pool.engines.get(event.engine), self.under_way.get(event.engine)
        if engine is None:
            return []
        if event.form:
            engine.vitals.form, engine.vitals.attested = event.form, event.attested
            cohorts.settle(self.pool)
        if way is None or way.stage != "check":  # at its first life: what later ones are compared with
            engine.vitals.contract = event.contract or engine.vitals.contract
            return []
        if event.problem:
            return self._refuse(event.t, engine, event.problem)
        if event.generation != way.generation:
            return self._refuse(event.t, engine, "it was started anew meanwhile")
        before, engine.vitals.contract = engine.vitals.contract, event.contract
        if before and event.contract != before:
            way.note = f"contract {event.contract or 'unknown'} instead of {before}"
            engine.prefill_scale = 1.0  # it was that of the former one
        return self._go(event.t, engine, way, "completion")

    def tried(self, t: float, name: str, outcome: Outcome) -> list[AnyCommand]:
        """A completion or handoff of it ended."""
        engine, way = self.pool.engines.get(name), self.under_way.get(name)
        if engine is None or way is None or way.stage not in _SAID:
            return []
        if outcome not in ("right", "wrong", "reference"):
            return self._failed(t, engine, way)
        if way.stage == "completion":
            return self._with_peer(t, engine, way)
        return self._go(t, engine, way, "consume" if way.stage == "produce" else "look")

    def _failed(self, t: float, engine: Engine, way: Readmission) -> list[AnyCommand]:
        """Another peer may do where one failed: then it was the link, or the peer."""
        reason = _SAID[way.stage].format(peer=way.peer)
        if way.stage == "completion":
            return self._refuse(t, engine, reason)
        pair = (engine.id, way.peer) if way.stage == "produce" else (way.peer, engine.id)
        way.tried += (way.peer,)
        if len(way.tried) >= MOST_PEERS or self.trials.peer(engine, way.tried) is None:
            return self._refuse(t, engine, reason)
        severed = self.links.sever(t, *pair, f"at the readmission of {engine.id}: {reason}")
        return severed + self._with_peer(t, engine, way)

    def _with_peer(self, t: float, engine: Engine, way: Readmission) -> list[AnyCommand]:
        peer = self.trials.peer(engine, way.tried)
        if peer is None:
            way.note = "; ".join(filter(None, (way.note, "no peer is live: KV was not tried")))
            return self._go(t, engine, way, "look")
        way.peer = peer.id
        return self._go(t, engine, way, "produce")

    def _go(self, t: float, engine: Engine, way: Readmission, stage: Stage) -> list[AnyCommand]:
        way.stage, way.since_t = stage, t
        if stage == "look":
            return [ProbeEngine(engine.id)]
        producer = way.peer if stage == "consume" else engine.id
        consumer = way.peer if stage == "produce" else engine.id
        return [self.trials.ask(t, producer, consumer, "readmit", engine.id)]

    def _readmit(self, t: float, engine: Engine, way: Readmission) -> list[AnyCommand]:
        del self.under_way[engine.id]
        engine.ejected = False
        engine.admitted = True
        engine.vitals.admitted = engine.generation
        forgive(engine)
        said = f"healthy, completes prompts{f', hands KV over both ways with {way.peer}' if way.peer else ''}"
        commands: list[AnyCommand] = [changed(engine, t, "readmitted", "; ".join(filter(None, (said, way.note))))]
        engine.vitals.reason = ""
        return commands + drains.renewed(engine, t)

    def _refuse(self, t: float, engine: Engine, reason: str) -> list[AnyCommand]:
        self.lost(engine.id)
        engine.vitals.healthy = 0
        engine.vitals.not_before_t = t + self.settings.recovery.readmit_backoff_s
        return self._say(t, engine, reason)

    def _say(self, t: float, engine: Engine, reason: str) -> list[AnyCommand]:
        """Why it is still out, once for each reason."""
        text = f"not readmitted: {reason}"
        return [] if engine.vitals.reason == text else [changed(engine, t, "refused", text)]


def named(engine: Engine, told_id: str) -> list[AnyCommand]:
    """Leg 1's answer named its process; another id than before is a restart that no look has seen yet."""
    if not told_id or told_id == engine.told_id:
        return []
    restarted, engine.told_id = bool(engine.told_id), told_id
    if not restarted:
        return []
    engine.suspected = True
    return [EngineChanged(engine.id, "questioned", "its answer names another process"), ProbeEngine(engine.id)]
