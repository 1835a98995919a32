"""Evidence against an engine: what a failure counts, and how it is forgotten."""

from narwhal.control.state import Engine

OWN = frozenset(["connection", "timeout", "stream", "handoff", "status"])
"""Causes that count against an engine where nobody else can be to blame. A 503 is none (it is busy, not ill), and a
4xx never is: clients could eject engines with it."""


def strikes(engine: Engine, t: float, half_life_s: float) -> float:
    """What counts against an engine at `t`: each strike is worth half after `half_life_s`."""
    vitals = engine.vitals
    if vitals.strikes == 0.0:
        return 0.0
    return float(vitals.strikes * 0.5 ** (max(t - vitals.struck_t, 0.0) / half_life_s))


def strike(engine: Engine, t: float, cause: str, half_life_s: float, worth: float = 1.0) -> float:
    """Count a failure against an engine. Returns what counts now."""
    vitals = engine.vitals
    vitals.strikes = strikes(engine, t, half_life_s) + worth
    vitals.struck_t, vitals.struck_by = t, cause
    return vitals.strikes


def forgive(engine: Engine) -> None:
    """Forget every strike: another process, or one that has proven itself."""
    engine.vitals.strikes = 0.0
