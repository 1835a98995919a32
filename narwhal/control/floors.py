"""Floor repair: a role below its configured floor gets one engine per monitor pass, before anything else.

A role is short by its live engines: a suspected one may be back at the next look, and moves no engine until it is
ejected. What the other role can spare counts by those that may get new work (`load.able`).
"""

from collections.abc import Collection
from dataclasses import dataclass

from narwhal.control import guards
from narwhal.control.events import Role
from narwhal.control.load import able, by_role, role_of
from narwhal.control.records import Guard
from narwhal.control.state import Engine, Pool, Settings


@dataclass(frozen=True, slots=True)
class Repair:
    """A floor that is broken, and what would repair it."""

    target: Role
    live: int
    """Live engines of the role."""
    floor: int
    donor: Engine | None
    """The engine that goes there; None when every one is needed where it is, or held."""
    asked: tuple[Guard, ...]


def unseen(pool: Pool, settings: Settings, t: float) -> bool:
    """Whether an engine joined and was not looked at yet: it may be just what a role lacks.

    Nobody is waited for longer than a look takes, however long the first one is on its way.
    """
    most_s = settings.recovery.probe_interval_s + settings.recovery.probe_timeout_s
    return any(
        not (engine.generation or engine.ejected or engine.vitals.misses) and t - engine.vitals.since_t < most_s
        for engine in pool.engines.values()
    )


def broken(pool: Pool, settings: Settings) -> Role | None:
    """The role that is below its floor: an empty one first, else prefill.

    None where all is well, or one engine serves both roles.
    """
    prefill, decode = pool.split()
    if prefill + decode <= 1:
        return None
    short_of_decode = decode < settings.controller.min_decode
    if prefill < settings.controller.min_prefill and not (short_of_decode and decode == 0):
        return "prefill"
    return "decode" if short_of_decode else None


def emptied(pool: Pool, gone: Collection[str]) -> Role | None:
    """The role whose last live engine is among those that go; None: each role keeps one, or had none."""
    for engines in by_role(pool):
        if engines and all(engine.id in gone for engine in engines):
            return role_of(engines[0])
    return None


def stand_ins(pool: Pool, settings: Settings, gone: Collection[str], t: float) -> list[Engine] | None:
    """Engines of the other role that take over a role which would fall below its floor without those that go.

    None where none has to, or not enough can: the other role keeps its own floor, pinned engines stay.
    """
    prefill, decode = ([e for e in role if e.id not in gone and able(e)] for role in by_role(pool))
    controller = settings.controller
    short = controller.min_prefill - len(prefill), controller.min_decode - len(decode)
    if max(short) <= 0 or sum(short) > 0:
        return None
    target: Role = "prefill" if short[0] > 0 else "decode"
    others, lacking = (decode, short[0]) if target == "prefill" else (prefill, short[1])
    free = [e for e in others if guards.pin(e, target).passed and guards.lifecycle(e).passed]
    free.sort(key=lambda engine: emptiness(engine, target, settings, t))
    return free[:lacking] if len(free) >= lacking else None


def repair(pool: Pool, settings: Settings, t: float) -> Repair | None:
    """The repair of a broken floor. Skips cooldown and dwell, never pins, lifecycle holds or the resident cap."""
    target = broken(pool, settings)
    if target is None:
        return None
    prefill, decode = by_role(pool)
    live, others = (prefill, decode) if target == "prefill" else (decode, prefill)
    controller = settings.controller
    floor, other_floor = controller.min_prefill, controller.min_decode
    if target == "decode":
        floor, other_floor = other_floor, floor
    asked: list[Guard] = []
    donor = None
    # An empty role is worse than a short one: it may take the other below its floor, but never to nothing.
    if sum(map(able, others)) > (other_floor if live else 1):
        for engine in sorted(others, key=lambda other: emptiness(other, target, settings, t)):
            checks = [guards.pin(engine, target), guards.lifecycle(engine), guards.residents(engine, settings)]
            asked += checks
            if all(check.passed for check in checks):
                donor = engine
                break
    return Repair(target, len(live), floor, donor, tuple(asked))


def emptiness(engine: Engine, target: Role, settings: Settings, t: float) -> tuple[bool, float, str]:
    """The least goes first to another role: resident work of that role is welcome, own work is not."""
    if target == "prefill":
        return not engine.prefills, engine.occupancy(settings.slo.tpot_s), engine.id
    return not engine.streams, engine.backlog_s(t), engine.id
