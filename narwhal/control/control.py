"""The state machine: events in, commands out."""

from collections.abc import Callable
from typing import Any

from narwhal.control import admission, drains, losses
from narwhal.control.commands import AnyCommand, EngineChanged, PairChanged
from narwhal.control.demand import Demand
from narwhal.control.events import (
    AnyEvent,
    CanaryArmed,
    DeadlinePassed,
    DrainSet,
    EngineChecked,
    EngineDown,
    EngineJoined,
    EngineLeft,
    EngineObserved,
    EngineRetired,
    EngineRevised,
    EngineUp,
    FirstToken,
    HoldSet,
    LeaseChanged,
    LegFailed,
    MoveFailed,
    MoveRequested,
    PairTried,
    PinSet,
    PrefillFinished,
    ReadmitRequested,
    RequestArrived,
    RequestCancelled,
    RequestFinished,
    ResumeFailed,
    ResumeReady,
    RoleMoved,
    SettingsChanged,
    SwapRequested,
    Tick,
    TokensObserved,
)
from narwhal.control.generations import named
from narwhal.control.health import Health
from narwhal.control.orders import Orders
from narwhal.control.roles import RoleController
from narwhal.control.setbacks import Setbacks
from narwhal.control.state import Pool, Request, Settings

LOST = ("ejected", "left")
"""Changes after which nothing comes from an engine any more."""


class Control:
    """Decides for one pool of engines. Deterministic: the same events give the same commands."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings = settings.copy()
        self.pool = Pool()
        self.pool.accounts.configure(settings.tenants)
        self.demand = Demand(settings, self.pool)
        self.health = Health(settings, self.pool)
        self.lifecycle = Setbacks(settings, self.pool, self.demand)
        self.roles = RoleController(settings, self.pool, self.demand)
        health, lifecycle, roles = self.health, self.lifecycle, self.roles
        orders = Orders(settings, self.pool, roles)
        lifecycle.vindicated = self._vindicated
        self._handlers: dict[type, Callable[[Any], list[AnyCommand]]] = {
            RequestArrived: self._arrived,
            PrefillFinished: self._prefill_finished,
            FirstToken: lifecycle.first_token,
            TokensObserved: lifecycle.tokens,
            RequestFinished: lifecycle.finished,
            RequestCancelled: lifecycle.cancelled,
            DeadlinePassed: self._deadline_passed,
            LegFailed: self._leg_failed,
            ResumeReady: lifecycle.resume_ready,
            ResumeFailed: lifecycle.resume_failed,
            Tick: self._tick,
            EngineObserved: self._observed,
            EngineChecked: lambda event: self._standing(event.t, health.generations.checked(event)),
            PairTried: lambda event: self._standing(event.t, health.tried(event)),
            CanaryArmed: health.canaries.armed,
            EngineJoined: lambda event: self._standing(event.t, health.joined(event)),
            EngineLeft: lambda event: self._standing(event.t, health.left(event)),
            EngineRetired: lambda event: self._standing(event.t, health.retired(event)),
            EngineRevised: self._revised,
            SettingsChanged: self._settings_changed,
            EngineUp: lambda event: self._standing(event.t, health.up(event)),
            EngineDown: lambda event: self._standing(event.t, health.down(event)),
            DrainSet: lambda event: self._standing(event.t, orders.drain(event)),
            ReadmitRequested: lambda event: self._standing(event.t, orders.readmit(event)),
            PinSet: lambda event: self._after_roles(event.t, orders.pin(event)),
            HoldSet: lambda event: self._after_roles(event.t, roles.set_hold(event.t, event.on, event.reason)),
            LeaseChanged: self._lease_changed,
            MoveRequested: lambda e: self._after_roles(e.t, roles.request_move(e.t, e.engine, e.role)),
            SwapRequested: lambda e: self._after_roles(e.t, roles.request_swap(e.t, e.a, e.b)),
            RoleMoved: lambda e: self._after_roles(e.t, roles.moved(e.t, e.engine, e.role, e.epoch)),
            MoveFailed: lambda e: self._after_roles(e.t, roles.move_failed(e.t, e.engine, e.role, e.epoch, e.reason)),
        }

    def handle(self, event: AnyEvent) -> list[AnyCommand]:
        """Take one event, return what to do, in order. An event about something unknown does nothing."""
        return self._handlers[type(event)](event)

    def foresee(self, t: float, tenant: str, least: int, most: int) -> admission.Refusal | None:
        """The refusal that a tenant's request meets whatever it says; its prompt has `least` to `most` tokens.

        No event: nothing changes.
        """
        return admission.foresee(self.pool, self.settings, t, self.pool.accounts[tenant].share(None), least, most)

    def _arrived(self, event: RequestArrived) -> list[AnyCommand]:
        commands = self.lifecycle.arrive(event)
        if self.lifecycle.is_late(event.request, event.t, commands):
            commands += self._after_roles(event.t, self.roles.urgent(event.t))
        return commands

    def _prefill_finished(self, event: PrefillFinished) -> list[AnyCommand]:
        request = self.pool.requests.get(event.request)
        producer = self.pool.engines.get(request.prefill_engine) if request is not None else None
        commands = named(producer, event.generation) if producer is not None else []
        if commands:
            self.pool.refresh()
        return commands + self.lifecycle.prefill_finished(event)

    def _leg_failed(self, event: LegFailed) -> list[AnyCommand]:
        """What it is evidence of comes first, so that a retry goes by it."""
        request = self.pool.requests.get(event.request)
        commands = self._standing(event.t, self.health.leg_failed(event, request))
        commands = commands + self.lifecycle.leg_failed(event)
        if request is not None and request.accused and request.id not in self.pool.requests:
            commands = commands + self._standing(event.t, self.health.unresolved(event.t, request))
        return commands

    def _deadline_passed(self, event: DeadlinePassed) -> list[AnyCommand]:
        """A leg that is overdue has failed."""
        failed = losses.overdue(self.pool, event)
        request = self.pool.requests.get(event.request)
        if failed is None or request is None:
            return self.lifecycle.deadline_passed(event)
        commands = self._standing(event.t, self.health.leg_failed(failed, request))
        if request.serving != failed.engine:
            return commands  # sent on already, with all else that waited for that engine
        return commands + self.lifecycle.deadline_passed(event)

    def _vindicated(self, t: float, request: Request) -> list[AnyCommand]:
        return self._standing(t, self.health.vindicated(t, request))

    def _observed(self, event: EngineObserved) -> list[AnyCommand]:
        commands = self.health.observed(event)
        return self._standing(event.t, commands) if commands else []

    def _standing(self, t: float, commands: list[AnyCommand]) -> list[AnyCommand]:
        """An engine's standing may have changed: who is open, what runs on a lost one, who can be placed now."""
        self.pool.refresh()
        for pair in [c for c in commands if isinstance(c, PairChanged) and c.change == "out"]:
            victims = losses.parted(self.pool, self.settings, pair.producer, pair.consumer)
            commands = commands + self.lifecycle.send_on(victims, pair.consumer, t, "handoff")
        for change in [c for c in commands if isinstance(c, EngineChanged)]:
            if change.change in LOST:
                gone = change.engine not in self.pool.engines
                victims = losses.lost(self.pool, change.engine, gone=gone)
                commands = commands + self.lifecycle.send_on(victims, change.engine, t, "connection")
            elif change.change == "suspected":
                victims = losses.stalled(self.pool, self.settings, change.engine)
                commands = commands + self.lifecycle.send_on(victims, change.engine, t, "timeout")
        return commands + self._place(t)

    def _tick(self, event: Tick) -> list[AnyCommand]:
        departed = self._depart(event.t) if self.health.leaving else []
        departed = departed + self._drain(event.t)
        due = self.health.tick(event.t)
        departed = departed + self._standing(event.t, due) if due else departed
        return departed + self._after_roles(event.t, self.roles.tick(event.t))

    def _depart(self, t: float) -> list[AnyCommand]:
        """Engines that were taken out are gone once nothing needs them, or their time is over."""
        done = [
            name for name, until_t in self.health.leaving.items() if t >= until_t or not losses.needs(self.pool, name)
        ]
        return self._standing(t, [command for name in done for command in self.health.left(EngineLeft(t, name))])

    def _drain(self, t: float) -> list[AnyCommand]:
        """Engines that are drained are drained once nothing needs them; at their time what is left goes elsewhere."""
        commands: list[AnyCommand] = []
        for engine in list(drains.under_way(self.pool)):
            if t >= engine.drain.until_t:
                commands += self.lifecycle.clear(t, engine.id)
            commands += drains.settle(self.pool, self.settings, self.health.trials, engine, t)
        return commands

    def _revised(self, event: EngineRevised) -> list[AnyCommand]:
        """A new pin is a request for that role, guarded as the operator's own moves are."""
        engine = self.pool.engines.get(event.engine)
        before = engine.file_pin if engine is not None else None
        commands = self.health.revised(event)
        if engine is None or engine.file_pin == before:
            return self._after_roles(event.t, commands)
        if engine.pin not in (None, engine.moving or engine.role):
            commands = commands + self.roles.request_move(event.t, engine.id, engine.pin)
        return self._after_roles(event.t, commands)

    def _settings_changed(self, event: SettingsChanged) -> list[AnyCommand]:
        """Everything reads the one `Settings`; here is what keeps a figure of it."""
        before = self.settings.copy()
        self.settings.take(Settings.read(event.settings))
        self.pool.accounts.configure(self.settings.tenants)
        for queue in (self.pool.held, self.pool.queue, self.pool.seats):
            queue.reweigh()
        self.demand.retune(event.t)
        self.roles.retune(event.t, before)
        return self._after_roles(event.t, [])

    def _lease_changed(self, event: LeaseChanged) -> list[AnyCommand]:
        self.pool.frozen = not event.proven
        return self._standing(event.t, self.health.thawed(event.t)) if event.proven else []

    def _after_roles(self, t: float, commands: list[AnyCommand]) -> list[AnyCommand]:
        """Roles may have changed: prompts that wait are placed again."""
        self.pool.refresh()
        return commands + self._place(t)

    def _place(self, t: float) -> list[AnyCommand]:
        return self.lifecycle.advance(t)
