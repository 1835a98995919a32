"""What changes an engine's standing: out, and whether that may be."""

from narwhal.control.commands import AnyCommand, EngineChanged
from narwhal.control.state import Engine, Pool, Settings

MOST_BACKOFF_S = 300.0
"""Longest wait before readmission, whatever came before; an engine that served for so long begins anew."""
SILENCE = 2
"""So many times `recovery.eject_after` looks without an answer leave no doubt: even the last of a role is out."""


def most_misses(settings: Settings) -> int:
    """Looks in a row without an answer that eject even the last engine of a role."""
    return SILENCE * settings.recovery.eject_after


def settled_s(settings: Settings, engine: Engine) -> float:
    """Seconds until an engine that hangs is out at the latest, or has answered: all looks that it may still miss."""
    recovery = settings.recovery
    left = max(most_misses(settings) - engine.vitals.misses, 1)
    return left * (recovery.probe_interval_s + recovery.probe_timeout_s)


def last_of_role(pool: Pool, engine: Engine) -> bool:
    """Whether no other engine of its role may get new work."""
    return not any(other.open and other.role == engine.role for other in pool.engines.values() if other is not engine)


def eject(pool: Pool, settings: Settings, engine: Engine, t: float, reason: str, *, soft: bool) -> list[AnyCommand]:
    """Take an engine out of service, until it is readmitted.

    `soft`: the evidence leaves room for doubt. It does not take a role its last engine, and readmission waits for
    a while that doubles each time.
    """
    if engine.ejected or not engine.admitted or (soft and last_of_role(pool, engine)):
        return []
    vitals = engine.vitals
    if soft:
        if t - vitals.since_t > MOST_BACKOFF_S:
            vitals.ejections = 0
        vitals.not_before_t = t + min(settings.recovery.readmit_backoff_s * 2.0**vitals.ejections, MOST_BACKOFF_S)
        vitals.ejections += 1
    engine.ejected = True
    engine.probation = False
    vitals.healthy = 0
    return [changed(engine, t, "ejected", reason)]


def changed(engine: Engine, t: float, change: str, reason: str) -> EngineChanged:
    """Note why an engine stands as it does, and say so."""
    engine.vitals.reason, engine.vitals.since_t = reason, t
    return EngineChanged(engine.id, change, reason)
