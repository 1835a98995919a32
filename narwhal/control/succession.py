"""What one router leaves to the next: the role map, which only the one that leads writes, and what it has learned.

The dead router's requests are gone with it: engines notice that nobody reads, and handoffs that nobody comes for keep
their blocks until their lease ends. What engines still show of both is foreign load, as any load that is not ours.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from narwhal.control import charges
from narwhal.control.control import Control
from narwhal.control.events import Role
from narwhal.control.queue import FairQueue
from narwhal.control.snapshot import restore
from narwhal.control.state import Engine, Pool, Settings


class RoleEntry(msgspec.Struct, frozen=True):
    """One engine in the role map."""

    role: Role
    pin: Role | None
    generation: str
    """The life that may have work; empty: none may."""
    drains: bool = False
    """Whether the operator has it drained."""
    drain_life: str = ""
    """The life with which its drain ends; empty: the operator ends it."""


class RoleMap(msgspec.Struct, frozen=True):
    """Everything that must not have two writers."""

    epoch: int
    """Rises with each role change, whichever router makes it."""
    hold: bool
    hold_reason: str
    engines: dict[str, RoleEntry]
    """By id."""


def role_map(pool: Pool, moves: Mapping[str, Role] | None = None) -> RoleMap:
    """The map of a pool as it will be once these moves are done."""
    moves = moves or {}
    entries = {
        name: RoleEntry(moves.get(name, engine.role), engine.pin, _life(engine), engine.draining, engine.drain.life)
        for name, engine in sorted(pool.engines.items())
    }
    return RoleMap(pool.epoch, pool.hold, pool.hold_reason, entries)


def follow_map(control: Control, found: RoleMap) -> None:
    """Take up a role map. Engines that it does not know stay as they are."""
    pool = control.pool
    pool.epoch = max(pool.epoch, found.epoch)
    pool.hold, pool.hold_reason = found.hold, found.hold_reason
    control.roles.forget_moves()
    for name, entry in found.engines.items():
        engine = pool.engines.get(name)
        if engine is None:
            continue
        engine.role, engine.pin = entry.role, entry.pin
        if engine.draining is not entry.drains:
            engine.drain.done, engine.drain.until_t = False, float("inf")
        engine.draining, engine.drain.life = entry.drains, entry.drain_life
        if entry.generation:  # the next look tells whether it is still that life
            engine.generation = engine.vitals.admitted = entry.generation
            engine.admitted = True
        else:  # it is known, and out: whatever life answers next has to be readmitted
            engine.ejected = True
    pool.refresh()


def succeed(settings: Settings, state: dict[str, Any], shift_s: float, *, t: float | None = None) -> Control:
    """A control that knows what another router knew, but for its requests.

    `state`: of a `Cut` without residents. `shift_s`: this clock less the other's. `t`: the time by this clock, until
    which any engine may have made handoffs that nobody comes for; None: none has. Raises `SnapshotError`.
    """
    control = restore(settings, state, shift_s=shift_s)
    pool = control.pool
    for engine in pool.engines.values():
        charges.discharge(engine)
        engine.drain.done = False
    if t is not None:
        presume_handoffs(pool, t)
    for account in pool.accounts:
        account.open = account.waiting = 0
    pool.accounts.configure(settings.tenants)
    pool.held, pool.queue, pool.seats = FairQueue(), FairQueue(), FairQueue()
    control.health.leaving = {e.id: e.leaves_t for e in pool.engines.values() if e.leaves_t is not None}
    control.roles.forget_moves()
    pool.refresh()
    return control


def presume_handoffs(pool: Pool, t: float) -> None:
    """Until `t` any engine may have made handoffs, for another router, that nobody comes for."""
    for engine in pool.engines.values():
        engine.abandoned_times = [t]


def _life(engine: Engine) -> str:
    """The life of an engine that may have work; empty: none may."""
    return engine.vitals.admitted if engine.admitted and not engine.ejected else ""
