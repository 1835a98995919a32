"""What every move passes, whatever the policy: one function for each guard, each with its numbers.

A guard's name is its key in the fleet file where it has one. Values are finite, so that records stay plain JSON.
"""

from narwhal.control.events import Role
from narwhal.control.load import able, able_in, role_of
from narwhal.control.records import Guard
from narwhal.control.state import Engine, Pool, Settings

LONG_AGO_S = 1e6
"""How old a role is said to be that an engine never was moved to, in seconds."""


def pin(engine: Engine, target: Role) -> Guard:
    """A pinned engine never leaves its role."""
    passed = engine.pin is None or engine.pin == target
    return Guard("pin", passed, 0.0 if passed else 1.0, 0.0, engine.id)


def lifecycle(engine: Engine) -> Guard:
    """An engine that is ejected, draining, leaving, suspected, not admitted yet, or between two roles does not move.

    The guard carries the name of the state that holds it; `lifecycle` when none does.
    """
    if engine.open:
        return Guard("lifecycle", True, 0.0, 0.0, engine.id)
    states = {
        "unadmitted": not engine.admitted,
        "ejected": engine.ejected,
        "draining": engine.draining,
        "leaving": engine.leaves_t is not None,
        "suspected": engine.suspected or engine.questions > 0,
        "moving": engine.moving is not None,
    }
    return Guard(next(name for name, on in states.items() if on), False, 1.0, 0.0, engine.id)


def dwell(engine: Engine, settings: Settings, t: float) -> Guard:
    """An engine stays in a role it was moved to for a while."""
    age_s, limit_s = min(t - engine.role_since_t, LONG_AGO_S), settings.controller.thresholds.dwell_s
    return Guard("dwell_s", age_s >= limit_s, age_s, limit_s, engine.id)


def residents(engine: Engine, settings: Settings) -> Guard:
    """A decode engine with more resident streams than the cap does not move; a cap of 0 is none."""
    limit = settings.controller.thresholds.flip_resident_guard
    passed = limit == 0 or engine.role != "decode" or engine.streams <= limit
    return Guard("flip_resident_guard", passed, float(engine.streams), float(limit), engine.id)


def cooldown(settings: Settings, t: float, last_t: float) -> Guard:
    """Time between two decisions that move engines from prefill to decode; `last_t` is that of the last one."""
    age_s, limit_s = min(t - last_t, LONG_AGO_S), settings.controller.thresholds.cooldown_s
    return Guard("cooldown_s", age_s >= limit_s, age_s, limit_s)


def floor(settings: Settings, source: Role, left: int) -> Guard:
    """The role that gives engines away keeps its floor of engines that may get new work; `left` is what it would have.

    A suspected engine is none of them: until a look says otherwise, nothing new goes there.
    """
    controller = settings.controller
    limit = controller.min_prefill if source == "prefill" else controller.min_decode
    return Guard(f"min_{source}", left >= limit, float(left), float(limit))


def cohort(engine: Engine, target: Role, pool: Pool) -> list[Guard]:
    """While a fleet is rolled, an engine does not leave those of its cohort that it pairs with without a partner.

    Nothing is asked while there is one cohort: floors suffice then.
    """
    live = [other for other in pool.engines.values() if other.live]
    if len({other.fingerprint for other in live}) < 2:
        return []
    own = [other for other in live if other is not engine and other.fingerprint == engine.fingerprint]
    left = sum(able(other) and role_of(other) != target for other in own)
    return [Guard("cohort", left > 0 or not own, float(left), 1.0, engine.id)]


def hold(pool: Pool) -> Guard:
    """The operator froze role moves."""
    return Guard("hold", not pool.hold, 1.0 if pool.hold else 0.0, 0.0)


def lease(pool: Pool) -> Guard:
    """The router can prove that it is the one that leads."""
    return Guard("lease", not pool.frozen, 1.0 if pool.frozen else 0.0, 0.0)


def advisory(settings: Settings) -> Guard:
    """The controller records and does not act."""
    on = settings.controller.advisory
    return Guard("advisory", not on, 1.0 if on else 0.0, 0.0)


def of_engine(engine: Engine, target: Role, settings: Settings, t: float) -> list[Guard]:
    """All that one donor passes."""
    return [pin(engine, target), lifecycle(engine), dwell(engine, settings, t), residents(engine, settings)]


def shrink(
    donors: list[Engine], target: Role, settings: Settings, pool: Pool, t: float
) -> tuple[list[Engine], list[Guard]]:
    """The donors that pass, and what was asked: each passes its own guards and the floor, or the batch shrinks."""
    asked: list[Guard] = []
    passed: list[Engine] = []
    source: Role = "decode" if target == "prefill" else "prefill"
    own = able_in(pool, source)
    for engine in donors:
        guards = [*of_engine(engine, target, settings, t), floor(settings, source, own - len(passed) - 1)]
        guards += cohort(engine, target, pool)
        asked += guards
        if all(guard.passed for guard in guards):
            passed.append(engine)
    return passed, asked
