"""Reading the fleet file again while the router runs: check it, apply what can be applied, say what cannot.

The file is read by a thread. It takes the interpreter in turns with the loop, in turns of `TURN_S` instead of Python's
5 ms, so the loop is late by a few milliseconds at most; a process of its own would take a second of a second core to
start, and forking it stops the loop for longer. What was read is applied in one go between two events of the loop.
"""

import asyncio
import logging
import sys
from collections.abc import Callable
from pathlib import Path

from narwhal.control import Settings, floors
from narwhal.control.commands import Decided
from narwhal.control.events import SettingsChanged
from narwhal.fleet import Expanded, FleetError, Profile, ProfileError, SourceError, open_fleet
from narwhal.fleet.model import Fleet
from narwhal.router.errors import ServeError
from narwhal.router.front import Clients
from narwhal.router.journal import utc_now
from narwhal.router.listeners import Listeners
from narwhal.router.members import Members, fleet_profile
from narwhal.router.probes import Probes
from narwhal.router.reach import Reach, engine_reach
from narwhal.router.reload import Change, Error, InForce, Plan, Reload, compare
from narwhal.router.rows import ReloadRow
from narwhal.router.shell import Shell
from narwhal.router.tenants import Keys, read_keys

_Read = tuple[Expanded, Profile, Reach, Keys]
_UNUSABLE = (FleetError, SourceError, ProfileError, ServeError)
log = logging.getLogger("narwhal.router")
TURN_S = 0.0002
"""How long the reading thread may keep the interpreter to itself when the loop wants it, in seconds."""


class Reloader:
    """Takes reloads in turn. `file`: where the fleet file stands; None: the router was not started from one."""

    def __init__(
        self,
        file: Path | None,
        expanded: Expanded,
        shell: Shell,
        members: Members,
        probes: Probes,
        clients: Clients,
        listeners: Listeners,
    ) -> None:
        self.now = InForce.start(expanded)
        self._file = file
        self._shell = shell
        self._members = members
        self._probes = probes
        self._clients = clients
        self._listeners = listeners
        self.frozen: Callable[[], str] = lambda: ""
        """Why nothing may be applied now; empty: it may."""
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, *, by: str, check: bool, done: Callable[[Reload], None]) -> None:
        """Reload, or with `check` say what it would change, after the reloads before; `done` is told the outcome."""

        async def run() -> None:
            try:
                outcome = await self.reload(by=by, check=check)
            except Exception:
                log.exception("reload (%s): a defect of narwhal's; what was applied before it is in force", by)
                hint = "the router's log has the traceback; restart the router to be sure of what is in force"
                bug = Error("bug", "the reload failed inside the router", str(self._file), hint=hint)
                outcome = self._keep(by, check, "", [bug])
            done(outcome)

        task = self._shell.loop.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def reload(self, *, by: str, check: bool = False) -> Reload:
        """Read the file and apply it, or keep everything as it is. `by` says in the log who asked."""
        async with self._turn:
            try:
                expanded, profile, reach, keys = await self._read()
            except _UNUSABLE as error:
                return self._keep(by, check, "", _errors(error, str(self._file)))
            plan = compare(self.now, expanded)
            frozen = "" if check else self.frozen()
            if frozen:
                return self._keep(by, check, expanded.fleet.digest(), [Error("frozen", frozen, str(self._file))])
            emptied = floors.emptied(self._shell.control.pool, plan.leaves)
            if emptied is not None:
                return self._keep(by, check, expanded.fleet.digest(), [_emptied(emptied, plan)])
            if check:
                return self._outcome(plan, expanded, check=True)
            refused = self._listeners.renew(expanded)
            if refused:
                errors = [Error("secrets", message, str(self._file)) for message in refused]
                return self._keep(by, check, expanded.fleet.digest(), errors)
            before, self.now = self.now, self.now.after(expanded)
            self._members.reach = reach
            self._clients.take(self.now.fleet, keys)
            notes = self._apply(plan, profile)
            plan.applied[:] = [_noted(change, notes) for change in plan.applied]
            outcome = self._outcome(plan, expanded, check=False, before=before)
            self._tell(outcome, by)
            return outcome

    async def _read(self) -> _Read:
        if self._file is None:
            raise SourceError("no-file", "the router was not started from a file", "-", "restart it with --fleet FILE")
        usual_s = sys.getswitchinterval()
        sys.setswitchinterval(TURN_S)
        try:
            return await asyncio.to_thread(_open, self._file, self.now.fleet, self.now.router.standby)
        finally:
            sys.setswitchinterval(usual_s)

    def _apply(self, plan: Plan, profile: Profile) -> dict[str, str]:
        """Carry a plan out; what is in force is `self.now` already. Returns notes by path."""
        fleet, shell, members = self.now.fleet, self._shell, self._members
        shell.feed(SettingsChanged(shell.now(), Settings.of(fleet).document()))
        shell.metrics.scale(fleet.slo)
        for name in plan.leaves:
            members.retire(name, fleet.serving.drain_s)
        members.use_profile(fleet, profile)
        notes: dict[str, str] = {}
        joining = {engine.id for engine in plan.joins}
        for engine in self.now.engines.values():
            if engine.id in joining:
                members.join(engine)
                continue
            for command in members.revise(engine):
                if isinstance(command, Decided) and command.decision.outcome != "stay":
                    notes[f"engine {engine.id} pin"] = f"{command.decision.outcome}: {command.decision.reason}"
        self._probes.interval_s = fleet.recovery.probe_interval_s
        self._probes.timeout_s = fleet.recovery.probe_timeout_s
        logging.getLogger().setLevel(fleet.observability.log_level.upper())
        return notes

    def _outcome(self, plan: Plan, expanded: Expanded, *, check: bool, before: InForce | None = None) -> Reload:
        was = (before or self.now).digest
        new = expanded.fleet.digest()
        return Reload(check, str(self._file), new, was, plan.applied, plan.restart, plan.no_effect)

    def _keep(self, by: str, check: bool, new: str, errors: list[Error]) -> Reload:
        """Nothing is changed. The log names places and rules, not values, which may be addresses."""
        if not check:
            self._shell.metrics.reloads["failed"] += 1
            for error in errors:
                place = ":".join(str(part) for part in (error.file, error.line, error.column) if part is not None)
                log.error("reload (%s): %s: %s %s", by, place, error.code, error.field or "")
            log.error("reload (%s): nothing was changed; narwhal validate %s says more", by, self._file)
        return Reload(check, str(self._file), new, self.now.digest, errors=errors)

    def _tell(self, outcome: Reload, by: str) -> None:
        shell = self._shell
        applied, restart = ([change.path for change in part] for part in (outcome.applied, outcome.restart))
        shell.metrics.reloads["applied"] += 1
        shell.journal.row(ReloadRow(shell.now(), utc_now(), by, outcome.before, outcome.digest, applied, restart))
        log.info(
            "reload (%s): %s", by, f"applied {', '.join(map(_words, outcome.applied))}" if applied else "no change"
        )
        for change in outcome.restart:
            log.warning("reload (%s): %s is as it was until a restart of %s", by, change.path, change.needs)


def _open(file: Path, in_force: Fleet, standby: bool) -> _Read:
    """The file, and the profile and the way to its engines under what is in force of `engines`; the tenants' keys."""
    expanded = open_fleet(file)
    fleet = expanded.fleet.model_copy(update={"engines": in_force.engines})
    keys = read_keys(fleet.routers.tenants, in_force.model.name)
    if len(expanded.routers) > 1:
        expanded = expanded.of_router(standby=standby)
    return expanded, fleet_profile(fleet), engine_reach(fleet, expanded.urls), keys


_GONE = ("missing-file", "unreadable-file")


def _errors(error: Exception, file: str) -> list[Error]:
    if isinstance(error, FleetError):
        return [Error(f.id, f.message, f.file, f.line, f.column, f.field, f.hint) for f in error.findings]
    if isinstance(error, SourceError):
        hint = "the router reads the file that it was started with: put it back" if error.code in _GONE else error.hint
        return [Error(error.code, error.message, error.file, error.line, hint=hint)]
    return [Error("profile" if isinstance(error, ProfileError) else "serve", str(error), file)]


def _emptied(role: str, plan: Plan) -> Error:
    names = ", ".join(plan.leaves)
    hint = f"narwhal move ENGINE {role} first, or add engines with a reload of their own and wait until they are live"
    return Error("floor", f"without {names} no live {role} engine is left", hint=hint)


def _noted(change: Change, notes: dict[str, str]) -> Change:
    note = notes.get(change.path)
    return change if note is None else Change(change.path, change.old, change.new, note=note)


def _words(change: Change) -> str:
    """A change for the log: numbers with their values, anything else by its path, since it may be an address."""
    if isinstance(change.new, int | float) and isinstance(change.old, int | float):
        return f"{change.path} {change.old:g} → {change.new:g}"
    if change.path.startswith("engine ") and " " not in change.path.removeprefix("engine "):
        return f"{change.path} {'joins' if change.old is None else 'leaves'}"
    return change.path
