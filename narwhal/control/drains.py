"""Draining an engine: it gets nothing new, and is drained once nothing runs on it and nobody may read KV from it.

A handoff is read with leg 2's first token. An answer that is buffered for its client shows none: there it counts as
read one lease after leg 2 began. A handoff that is given up keeps its blocks until its lease ends.
"""

from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

from narwhal.control.commands import AnyCommand, EngineChanged, ProbeEngine
from narwhal.control.standing import changed
from narwhal.control.state import Engine, Phase, Pool, Request, Settings
from narwhal.control.trials import Trials
from narwhal.control.vitals import Drain

NEVER = float("inf")


class Remains(NamedTuple):
    """What an engine still has."""

    residents: int
    """Prompts and streams on it, another router's included."""
    unread: int
    """Handoffs of it that may still be read, those under way for probes included."""
    abandoned: int
    """Handoffs that nobody will read, and whose lease has not ended."""

    @property
    def nothing(self) -> bool:
        """Whether the engine can be stopped without harm to any request."""
        return not (self.residents or self.unread or self.abandoned)


def remains(pool: Pool, settings: Settings, trials: Trials, engine: Engine, t: float) -> Remains:
    """What an engine has at `t`. Looks through all requests."""
    residents = len(engine.prefills) + engine.streams + (0 if engine.ejected else engine.foreign_streams)
    unread = sum(may_read(request, engine.id, t, settings.kv_lease_s) for request in pool.requests.values())
    unread += sum(trial.producer == engine.id for trial in trials.open.values())
    held = len(engine.abandoned_times) - bisect_left(engine.abandoned_times, t - settings.kv_lease_s)
    return Remains(residents, unread, 0 if engine.ejected else held)


def may_read(request: Request, engine: str, t: float, lease_s: float) -> bool:
    """Whether KV of an engine may still be read for a request."""
    if request.prefill_engine != engine or not request.reads_handoff:
        return False
    return request.phase is Phase.SEAT or t - request.entered_t < lease_s


def under_way(pool: Pool) -> Iterator[Engine]:
    """Engines that are being drained, and are not yet."""
    return (engine for engine in pool.engines.values() if engine.draining and not engine.drain.done)


def begin(engine: Engine, t: float, until_t: float, *, stays: bool) -> list[AnyCommand]:
    """Drain an engine. Where it is drained already, the time and the end are others from now on."""
    engine.drain.until_t = until_t
    engine.drain.life = "" if stays else engine.generation
    if engine.draining:
        return []
    engine.draining = True
    return [changed(engine, t, "draining", "by the operator")]


def end(engine: Engine, t: float) -> list[AnyCommand]:
    """The operator wants an engine to have work again.

    One that was drained is looked at first: it may be another process by now.
    """
    if not engine.draining:
        return []
    doubtful = engine.drain.done and not engine.ejected
    commands = _ended(engine, t, "by the operator")
    if not doubtful:
        return commands
    engine.suspected = True
    question = EngineChanged(engine.id, "questioned", "it may have been restarted while it was drained")
    return [*commands, question, ProbeEngine(engine.id)]


def renewed(engine: Engine, t: float) -> list[AnyCommand]:
    """An engine was readmitted: a drain for the sake of a restart is over where it is another process."""
    over = engine.draining and engine.drain.life not in ("", engine.generation)
    return _ended(engine, t, "another process of it was readmitted") if over else []


def _ended(engine: Engine, t: float, reason: str) -> list[AnyCommand]:
    engine.draining, engine.drain = False, Drain()
    said = changed(engine, t, "undrained", reason)
    if not engine.ejected:
        engine.vitals.reason = ""
    return [said]


def settle(pool: Pool, settings: Settings, trials: Trials, engine: Engine, t: float) -> list[AnyCommand]:
    """Say once that an engine is drained."""
    if engine.prefills or engine.streams or not remains(pool, settings, trials, engine, t).nothing:
        return []
    engine.drain.done = True
    return [changed(engine, t, "drained", "no request is on it, and every handoff of it was read or has expired")]
