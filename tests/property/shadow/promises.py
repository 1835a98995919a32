"""What control must keep to, checked against accounts of its own: of events and commands, not of control's state."""

from dataclasses import dataclass, field
from typing import Any

from narwhal.control import Control
from narwhal.control.commands import (
    AnyCommand,
    Decided,
    EngineChanged,
    MoveRole,
    StartDecode,
    StartPrefill,
    StartWhole,
)
from narwhal.control.events import AnyEvent, EngineJoined, EngineRevised, EngineUp, LeaseChanged, Role
from narwhal.control.records import Decision
from narwhal.control.succession import RoleMap

PASSES = 4
"""Passes of the monitor after which a floor that can be kept must be."""

PINS: dict[str, Role] = {"to prefill": "prefill", "to decode": "decode"}


@dataclass(slots=True)
class Life:
    """What an engine was seen to be, and which life of it may have work."""

    seen: str = ""
    allowed: str = ""
    known: bool = False
    """Whether any life of it was admitted before: later ones have to be readmitted."""
    barred: set[str] = field(default_factory=set)
    """`draining`, `leaving`."""


class Promises:
    """Follows one control's events and commands."""

    def __init__(self) -> None:
        self.lives: dict[str, Life] = {}
        self.pins: dict[str, Role | None] = {}
        self.file_pins: dict[str, Role | None] = {}
        self.frozen_with: set[str] | None = None
        """Lives that had been admitted when the lease became unproven; None while it is proven."""
        self.admitted: set[str] = set()
        self.short_since_t: float | None = None

    # What is heard

    def hear(self, event: AnyEvent) -> None:
        """Before control handles an event."""
        if isinstance(event, EngineJoined) and event.engine not in self.lives:
            self.lives[event.engine] = Life()
            self.pins[event.engine] = self.file_pins[event.engine] = event.pin
        elif isinstance(event, EngineRevised) and event.engine in self.lives:
            if event.pin != self.file_pins[event.engine]:
                self.pins[event.engine] = self.file_pins[event.engine] = event.pin
        elif isinstance(event, EngineUp) and event.engine in self.lives:
            life = self.lives[event.engine]
            if event.generation != life.seen and life.known:
                life.allowed = ""
            life.seen = event.generation
            if not life.known and self.frozen_with is None:
                self._admit(life)
        elif isinstance(event, LeaseChanged):
            if not event.proven:
                self.frozen_with = self.frozen_with if self.frozen_with is not None else set(self.admitted)
            else:
                self.frozen_with = None
                for life in self.lives.values():
                    if life.seen and not life.known:
                        self._admit(life)

    def _admit(self, life: Life) -> None:
        life.allowed, life.known = life.seen, True
        self.admitted.add(life.seen)

    def follow(self, found: RoleMap | None, control: Control) -> None:
        """Another control leads, by this map."""
        self.short_since_t = None
        self.lives = {}
        for name, engine in control.pool.engines.items():
            entry = found.engines.get(name) if found is not None else None
            allowed = entry.generation if entry is not None else engine.vitals.admitted if engine.live else ""
            life = self.lives[name] = Life(engine.generation, allowed, entry is not None or engine.admitted)
            self.pins[name], self.file_pins[name] = engine.pin, engine.file_pin
            if entry is not None:
                assert engine.role == entry.role, "a takeover moved an engine"
                assert engine.pin == entry.pin, "a takeover changed a pin"
                assert engine.draining == entry.drains, "a takeover changed a drain"
            if allowed:
                life.known = True
            self.admitted |= {allowed, engine.vitals.admitted}  # one that was out and is the same process may come back
            life.barred = {w for w, on in (("draining", engine.draining), ("leaving", engine.leaves_t)) if on}

    # What is done

    def check(self, control: Control, commands: list[AnyCommand]) -> None:
        """After control handled an event."""
        decisions = [command.decision for command in commands if isinstance(command, Decided)]
        for command in commands:
            if isinstance(command, EngineChanged):
                self._changed(command)
            elif isinstance(command, StartPrefill | StartDecode | StartWhole):
                self._started(command.engine)
            elif isinstance(command, MoveRole):
                assert self.frozen_with is None, "a move without the lease"
                assert self.pins[command.engine] in (None, command.role), "a pinned engine moved"
        for decision in decisions:
            if decision.outcome == "moved" and decision.trigger != "floor":
                self._keeps_floors(control, decision)
        drained = [c.engine for c in commands if isinstance(c, EngineChanged) and c.change == "draining"]
        self._drains_above_floors(control, drained)

    def _drains_above_floors(self, control: Control, drained: list[str]) -> None:
        rules, split = control.settings.controller, _able(control)
        for name in drained:
            engine = control.pool.engines[name]
            if engine.admitted and not engine.ejected and engine.leaves_t is None:
                prefill = (engine.moving or engine.role) == "prefill"
                left, least = (split[0], rules.min_prefill) if prefill else (split[1], rules.min_decode)
                assert left >= least, "a drain broke a floor"

    def _changed(self, command: EngineChanged) -> None:
        life = self.lives[command.engine]
        if command.change == "ejected":
            life.allowed, life.known = "", True
        elif command.change == "readmitted":
            if self.frozen_with is not None:
                assert life.seen in self.frozen_with, "a new life was admitted without the lease"
            self._admit(life)
        elif command.change == "left":
            del self.lives[command.engine]
            del self.pins[command.engine], self.file_pins[command.engine]
        elif command.change in ("draining", "leaving"):
            life.barred.add(command.change)
        elif command.change == "undrained":
            life.barred.discard("draining")
        elif command.change in ("pinned", "unpinned"):
            self.pins[command.engine] = PINS[command.reason] if command.change == "pinned" else None
        if command.change in ("draining", "undrained", "pinned", "unpinned"):
            assert self.frozen_with is None, f"{command.change} without the lease"

    def _started(self, engine: str) -> None:
        life = self.lives[engine]
        assert life.allowed, f"work for {engine}, which is not admitted"
        assert life.allowed == life.seen or not life.seen, f"work for {engine}, which is another process now"
        assert not life.barred, f"work for {engine}, which is {life.barred}"

    def _keeps_floors(self, control: Control, decision: Decision) -> None:
        if len(decision.moves) == 2 and len({move.target for move in decision.moves}) == 2:
            return  # a swap
        prefill, decode = _able(control)
        rules = control.settings.controller
        if any(move.source == "prefill" for move in decision.moves):
            assert prefill >= rules.min_prefill, "a move broke the floor of prefill"
        if any(move.source == "decode" for move in decision.moves):
            assert decode >= rules.min_decode, "a move broke the floor of decode"

    def check_floors(self, control: Control, t: float) -> None:
        """After each tick: a floor that can be kept is, within a few passes."""
        if not _repairable(control):
            self.short_since_t = None
        elif self.short_since_t is None:
            self.short_since_t = t
        interval_s = control.settings.controller.monitor_interval_s
        assert t - (self.short_since_t or t) <= PASSES * interval_s, "a floor that could be kept was not"

    def check_end(self, control: Control, t: float) -> None:
        """Long after all is mended: nobody is in question, and who may come back has."""
        assert not control.health.suspicion.cases
        for engine in control.pool.engines.values():
            assert not engine.prefills
            assert engine.streams == engine.kv_tokens == engine.prefill_tokens == engine.prefill_backlog_s == 0
            assert not engine.suspected
            assert not engine.questions
            waits = (
                engine.vitals.not_before_t > t or len(engine.vitals.starts_t) > control.settings.recovery.restarts.most
            )
            assert engine.live or waits, f"{engine.id} stays out: {engine.vitals.reason}"


def _able(control: Control) -> tuple[int, int]:
    """Prefill and decode engines that may get new work, those on their way to a role included."""
    able = [e for e in control.pool.engines.values() if e.live and not e.suspected and not e.questions]
    prefill = sum((engine.moving or engine.role) == "prefill" for engine in able)
    return prefill, len(able) - prefill


def _repairable(control: Control) -> bool:
    """Whether a role is below its floor although the rules let an engine go there."""
    pool, rules = control.pool, control.settings.controller
    live = [engine for engine in pool.engines.values() if engine.live]
    if pool.frozen or pool.hold or rules.advisory or not rules.enabled or len(live) < 2:
        return False
    floors: dict[Role, int] = {"prefill": rules.min_prefill, "decode": rules.min_decode}
    sides: dict[Role, list[Any]] = {role: [e for e in live if (e.moving or e.role) == role] for role in floors}
    most = rules.thresholds.flip_resident_guard
    for target, other in (("prefill", "decode"), ("decode", "prefill")):
        spare = sum(not e.suspected and not e.questions for e in sides[other]) - (floors[other] if sides[target] else 1)
        if len(sides[target]) < floors[target] and spare > 0:
            able = [e for e in sides[other] if e.open and e.pin in (None, target)]
            if any(not most or e.role != "decode" or e.streams <= most for e in able):
                return True
    return False
