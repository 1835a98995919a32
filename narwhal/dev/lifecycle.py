"""Bringing an instance up, and down again: idempotent, and able to go on where a killed `up` stopped."""

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from narwhal.dev.ask import readiness
from narwhal.dev.errors import DevError
from narwhal.dev.identity import stop
from narwhal.dev.instance import Instance
from narwhal.dev.ports import is_free
from narwhal.dev.process import DevProcess, Start, living, recorded, start, stop_recorded
from narwhal.dev.speed import ensure_profiled
from narwhal.dev.template import port_taken
from narwhal.diagnose import AddressError, AdminClient, NoTokenError, RefusedError, UnreachableError, find_router
from narwhal.engine.launch import simulated_argv
from narwhal.engine.record import write_launch
from narwhal.engine.render import render_launch
from narwhal.fleet import EngineSpec, Expanded, load_profile
from narwhal.fleet.expand import base_url
from narwhal.fleet.model import SimulatedRuntime

ROUTER = "router"
ENGINES_DEADLINE_S = 120.0
REAL_ENGINES_DEADLINE_S = 900.0
"""Imports, weights and CUDA graphs of several vLLM processes side by side: 25 s alone, minutes on a busy machine."""
ROUTER_DEADLINE_S = 60.0
STOP_DEADLINE_S = 10.0
LEADING_S = 8.0
"""How long a router that starts may take to get the lease, when nobody else has it."""
_POLL_S = 0.1
_LOG_LINES = 8

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Member:
    """A process that belongs to the instance by its fleet file."""

    start: Start
    ports: tuple[int, ...]
    url: str
    """Base URL at which it answers `ready_path` once it may be used."""
    ready_path: str


@dataclass(frozen=True, slots=True)
class Up:
    """What `up` came to."""

    url: str
    """Base URL for clients."""
    admin_url: str
    started: tuple[str, ...]
    """Names of the processes that had to be started; empty: it was already up."""
    stopped: tuple[str, ...]
    """Names of the processes that were stopped first, being out of date or none of the fleet's."""
    standby: tuple[str, ...] = ()
    """Command that starts the declared standby, which `up` leaves to the operator; empty: none is missing."""
    handles: tuple["subprocess.Popen[bytes]", ...] = ()
    """Of the started processes, for a parent that stays."""


def members(instance: Instance, expanded: Expanded) -> list[Member]:
    """The engines, the sidecars of real ones, then the router: all that the fleet file asks for on this machine."""
    router = expanded.routers[0]
    argv = [sys.executable, "-m", "narwhal.cli.serve", "--fleet", str(instance.fleet)]
    argv += ["--state-dir", str(instance.state)]
    engines = [_engine(instance, expanded, engine) for engine in expanded.engines]
    if not isinstance(expanded.fleet.engines.runtime, SimulatedRuntime):
        engines += [_sidecar(instance, engine) for engine in expanded.engines]
    return [
        *engines,
        Member(
            _start(instance, ROUTER, argv, instance.fleet_digest()),
            (router.port, router.admin_port),
            base_url(router.admin_bind, router.admin_port),
            "/ready",
        ),
    ]


def up(
    instance: Instance,
    say: Say,
    *,
    die_with_parent: bool = False,
    engines_deadline_s: float | None = None,
    router_deadline_s: float = ROUTER_DEADLINE_S,
) -> Up:
    """Start what is missing and wait until all of it is ready.

    Processes that a former `up` left and that still fit the fleet file are kept, the router after a reload where that
    is enough; the others it left are stopped.
    When something does not become ready, what this call started is stopped again. Raises `DevError`.
    """
    with instance.locked("up"):
        expanded = instance.expanded()
        wanted = {member.start.name: member for member in members(instance, expanded)}
        _reload(instance, wanted, say)
        stopped = _stop_outdated(instance, wanted)
        missing = [member for name, member in wanted.items() if name not in living(instance.run)]
        for member in missing:
            for port in member.ports:
                if not is_free(port):
                    raise port_taken(port, member.start.name)
        handles: list[subprocess.Popen[bytes]] = []
        try:
            engines = [member for member in wanted.values() if member.start.name != ROUTER]
            router = [wanted[ROUTER]]
            real = not isinstance(expanded.fleet.engines.runtime, SimulatedRuntime)
            deadline_s = engines_deadline_s or (REAL_ENGINES_DEADLINE_S if real else ENGINES_DEADLINE_S)
            handles += _bring_up(engines, missing, deadline_s, say, die_with_parent=die_with_parent)
            if real and wanted[ROUTER] in missing:
                ensure_profiled(instance, expanded, say)
            handles += _bring_up(router, missing, router_deadline_s, say, die_with_parent=die_with_parent)
            lease = _lease(instance)
            leader = _leader(expanded, lease, say)
        except BaseException:
            _take_back(instance, missing)
            raise
        return Up(
            url=client_url(leader),
            admin_url=base_url(leader.routers[0].admin_bind, leader.routers[0].admin_port),
            started=tuple(member.start.name for member in missing),
            stopped=tuple(stopped),
            standby=_missing_standby(instance, expanded, lease),
            handles=tuple(handles),
        )


def _bring_up(
    stage: list[Member], missing: list[Member], deadline_s: float, say: Say, *, die_with_parent: bool
) -> list["subprocess.Popen[bytes]"]:
    """Start what is missing of a stage, and wait until all of it is ready."""
    starting = [member for member in stage if member in missing]
    if starting:
        say(f"starting {_names(starting)}")
    handles = [start(member.start, die_with_parent=die_with_parent) for member in starting]
    _wait_ready(stage, deadline_s, say)
    return handles


def _leader(expanded: Expanded, lease: dict[str, Any], say: Say) -> Expanded:
    """The fleet as the router sees it that clients are to ask. Raises `DevError` when the router cannot lead."""
    if trouble := _trouble(lease):
        hint = "narwhal dev up, once that is mended"
        raise DevError("not_ready", f"{ROUTER} stands by: {trouble}", hint=hint, failed=True)
    if lease.get("leader_is") == "standby":
        say(f"the standby leads, {ROUTER} stands by")
        return expanded.of_router(standby=True)
    return expanded


def _missing_standby(instance: Instance, expanded: Expanded, lease: dict[str, Any]) -> tuple[str, ...]:
    if not expanded.on_one_host or lease.get("standing") != "leader" or lease["followers"]:
        return ()
    if lease["leader_is"] == "standby":
        return ()
    return ("narwhal-serve", "--standby", "--fleet", str(instance.fleet), "--state-dir", str(instance.state))


def lease_trouble(instance: Instance) -> str:
    """Why the router stands by though no other is known to lead; empty when it does not."""
    return _trouble(_lease(instance))


def _trouble(lease: dict[str, Any]) -> str:
    return "" if lease.get("standing") == "leader" else str(lease.get("trouble", ""))


def _lease(instance: Instance) -> dict[str, Any]:
    """What the router that leads says of its lease, or the one of this instance; empty when it cannot be asked."""
    try:
        lease: dict[str, Any] = _admin(instance).state().get("lease") or {}
    except (AddressError, NoTokenError, RefusedError, UnreachableError):
        return {}
    return lease


def client_url(expanded: Expanded) -> str:
    """Base URL at which clients of this machine reach the router."""
    router = expanded.routers[0]
    return base_url("127.0.0.1" if router.bind == "0.0.0.0" else router.bind, router.port)  # noqa: S104


def require_up(instance: Instance) -> Expanded:
    """The fleet of an instance of which something runs. Raises `DevError` when nothing does."""
    expanded = instance.expanded()
    if not living(instance.run):
        raise DevError("not_up", f"nothing of {instance.path} is running", hint="narwhal dev up", failed=True)
    return expanded


def down(instance: Instance, *, deadline_s: float = STOP_DEADLINE_S) -> list[str]:
    """Stop every process of the instance, and only those; returns their names. Nothing to stop is no error."""
    with instance.locked("down"):
        return stop_recorded(instance.run, deadline_s=deadline_s)


def states(instance: Instance) -> list[dict[str, Any]]:
    """What became of each process: `{name, state, pid, url, log}`, members first.

    States: `ready`, `starting`, `standby` (another router leads), `not answering`, `dead` and `stopped`;
    `outdated` is what runs otherwise than the fleet file says by now, or is no longer named by it (its `url` is None:
    the file does not tell it). Raises `DevError`.
    """
    wanted = members(instance, instance.expanded())
    running = living(instance.run)
    known = {process.name for process in recorded(instance.run)}
    rows = [_row(instance, member, running.get(member.start.name), known) for member in wanted]
    names = {member.start.name for member in wanted}
    return rows + [_stray(process, runs=True) for name, process in running.items() if name not in names]


def recorded_states(instance: Instance) -> list[dict[str, Any]]:
    """What the records alone tell, for a fleet file that cannot be read: `outdated` is what runs, the rest `dead`."""
    running = living(instance.run)
    return [_stray(process, runs=process.name in running) for process in recorded(instance.run)]


def _row(instance: Instance, member: Member, process: DevProcess | None, known: set[str]) -> dict[str, Any]:
    name, log = member.start.name, str(member.start.log)
    if process is None:
        state = "dead" if name in known else "stopped"
        return {"name": name, "state": state, "pid": None, "url": member.url, "log": log}
    if not _is_current(instance, process, member):
        return _stray(process, runs=True)
    state = readiness(member.url, member.ready_path) or "starting"
    return {"name": name, "state": state, "pid": process.identity.pid, "url": member.url, "log": log}


def _stray(process: DevProcess, *, runs: bool) -> dict[str, Any]:
    """The row of a process about which only its record can be asked."""
    state, pid = ("outdated", process.identity.pid) if runs else ("dead", None)
    return {"name": process.name, "state": state, "pid": pid, "url": None, "log": process.log}


def _engine(instance: Instance, expanded: Expanded, engine: EngineSpec) -> Member:
    """An engine; it is out of date when its own command, launch record or profile changes, not with any other line."""
    runtime = expanded.fleet.engines.runtime
    if isinstance(runtime, SimulatedRuntime):
        argv, record = simulated_argv(expanded, engine), load_profile(runtime.profile).model_dump_json()
    else:
        launch = _launch(instance, engine)
        launch.parent.mkdir(parents=True, exist_ok=True)
        write_launch(render_launch(expanded, engine), launch)
        argv, record = [sys.executable, "-m", "narwhal", "engine", "run", "--launch", str(launch)], launch.read_text()
    ports = (engine.port, engine.side_channel_port)
    return Member(_start(instance, engine.id, argv, _inputs(argv, record)), ports, engine.url, "/health")


def _sidecar(instance: Instance, engine: EngineSpec) -> Member:
    """What attests an engine; it reads the launch record that `_engine` has written."""
    launch = _launch(instance, engine)
    argv = [sys.executable, "-m", "narwhal", "engine", "attest", "--launch", str(launch)]
    start = _start(instance, f"{engine.id}/attest", argv, _inputs(argv, launch.read_text()))
    return Member(start, (engine.attest_port,), base_url(engine.address, engine.attest_port), "/health")


def _launch(instance: Instance, engine: EngineSpec) -> Path:
    return instance.run / f"{engine.id.replace('/', '-')}.launch"


def _inputs(argv: list[str], record: str) -> str:
    return hashlib.sha256("\0".join([*argv, record]).encode()).hexdigest()


def _start(instance: Instance, name: str, argv: list[str], inputs: str) -> Start:
    file = name.replace("/", "-")
    return Start(
        name=name,
        argv=argv,
        log=instance.log / f"{file}.log",
        record=instance.run / f"{file}.json",
        cwd=instance.path,
        inputs=inputs,
    )


def _is_current(instance: Instance, process: DevProcess, member: Member) -> bool:
    """Whether a process does what the fleet file says. A router may have read another text of it since its start."""
    answer = _ask_router(instance, check=True) if member.start.name == ROUTER else None
    if answer is None:
        return process.inputs == member.start.inputs
    return not answer["applied"] and not answer["restart"]


def _reload(instance: Instance, wanted: dict[str, Member], say: Say) -> None:
    """Have a running router read the changed fleet file, so that it need not be restarted where that is enough."""
    process = living(instance.run).get(ROUTER)
    if process is None or _is_current(instance, process, wanted[ROUTER]):
        return
    plan = _ask_router(instance, check=True)
    if plan is not None and not plan["restart"] and _ask_router(instance, check=False) is not None:
        say(f"{ROUTER} reloaded the fleet file")


def _ask_router(instance: Instance, *, check: bool) -> dict[str, Any] | None:
    """What a reload changes or would change in the router; None when it cannot tell, or would not do it."""
    try:
        return _admin(instance).reload(check=check)
    except (AddressError, NoTokenError, RefusedError, UnreachableError):
        return None


def _admin(instance: Instance) -> AdminClient:
    return find_router(router=None, fleet=instance.fleet, environ=os.environ, dev_fleet=None)


def _stop_outdated(instance: Instance, wanted: dict[str, Member]) -> list[str]:
    """Stop what runs from another fleet file or is no member any more, and forget the dead."""
    keep: set[Path] = set()
    outdated: list[DevProcess] = []
    for name, process in living(instance.run).items():
        member = wanted.get(name)
        if member is not None and _is_current(instance, process, member):
            keep.add(member.start.record)
        else:
            outdated.append(process)
    stop([process.identity for process in outdated], STOP_DEADLINE_S)
    for path in instance.run.glob("*.json"):
        if path not in keep:
            path.unlink(missing_ok=True)
    return sorted(process.name for process in outdated)


def _take_back(instance: Instance, started: list[Member]) -> None:
    names = {member.start.name for member in started}
    mine = [process for name, process in living(instance.run).items() if name in names]
    stop([process.identity for process in mine], STOP_DEADLINE_S)
    for member in started:
        member.start.record.unlink(missing_ok=True)


def _wait_ready(stage: list[Member], deadline_s: float, say: Say) -> None:
    """Wait for all members of a stage; one that ends, or that is not ready in time, ends the wait with its log.

    A router that still stands by after `LEADING_S` is up as well: another one may lead.
    """
    began_t = time.monotonic()
    until_t = began_t + deadline_s
    waiting = list(stage)
    while waiting:
        for member in list(waiting):
            state = readiness(member.url, member.ready_path)
            if state == "ready" or (state == "standby" and time.monotonic() - began_t > LEADING_S):
                waiting.remove(member)
                say(f"{member.start.name} {'is ready' if state == 'ready' else 'stands by'} at {member.url}")
            elif not _runs(member):
                raise _not_ready(member, "ended before it was ready")
        if waiting and time.monotonic() >= until_t:
            raise _not_ready(waiting[0], f"was not ready within {deadline_s:g} s")
        time.sleep(_POLL_S if waiting else 0)


def _runs(member: Member) -> bool:
    return member.start.name in living(member.start.record.parent)


def _not_ready(member: Member, what: str) -> DevError:
    tail = _tail(member.start.log)
    said = f"; its last lines:\n{tail}" if tail else "; it wrote nothing"
    hint = f"the whole log is {member.start.log}"
    return DevError("not_ready", f"{member.start.name} {what}{said}", hint=hint, failed=True)


def _tail(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(f"    {line}" for line in lines[-_LOG_LINES:])


def _names(started: list[Member]) -> str:
    return ", ".join(member.start.name for member in started)
