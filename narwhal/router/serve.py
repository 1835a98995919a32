"""The router process: listeners, shell, probes, signals; from start to graceful stop."""

import asyncio
import contextlib
import gc
import logging
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path

import uvloop

import narwhal
from narwhal.control import Settings
from narwhal.fleet import Profile
from narwhal.fleet.expanded import Expanded, RouterSpec
from narwhal.fleet.model import SimulatedRuntime
from narwhal.router.admin import Admin
from narwhal.router.gateway import Gateway
from narwhal.router.http import Connection
from narwhal.router.journal import Journal, utc_now
from narwhal.router.listeners import Listeners, open_listeners
from narwhal.router.members import Members, fleet_profile
from narwhal.router.metrics import Metrics
from narwhal.router.probes import Probes
from narwhal.router.reach import engine_reach
from narwhal.router.reloader import Reloader
from narwhal.router.requests import STOPPING
from narwhal.router.rows import StartRow
from narwhal.router.shell import Shell
from narwhal.router.speeds import Speeds
from narwhal.router.state import router_state
from narwhal.router.tenants import read_keys

log = logging.getLogger("narwhal.router")
HOUSEKEEPING_S = 1.0
"""How often idle and overdue connections are looked for."""
CERTIFICATES_S = 2.0
"""How often certificates are looked at for a replacement."""
GC_THRESHOLD = 50_000
"""Objects between two collections of the youngest generation: streams make no cycles, so there is little to find."""


FLUSH_S = 1.0
"""How long the last bytes may take to leave, in seconds."""


def serve(expanded: Expanded, *, state_dir: Path, file: Path | None = None) -> None:
    """Run the primary router of a fleet until SIGTERM or SIGINT; SIGHUP reads `file` again.

    Raises `ServeError` when it cannot listen, `ProfileError` when the engines' profile cannot be used.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # one that comes before the start is over must not end it
    _log_to_stderr(expanded.fleet.observability.log_level)
    _warn_of_what_has_no_effect(expanded)
    _raise_file_limit()
    profile = fleet_profile(expanded.fleet)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_Process(expanded, profile, state_dir, file).run())


def _log_to_stderr(level: str) -> None:
    """One line an event on stderr: what a terminal shows, and the journal of a unit, which adds the time itself."""
    form = "%(levelname)s %(message)s" if "JOURNAL_STREAM" in os.environ else "%(asctime)s %(levelname)s %(message)s"
    logging.basicConfig(stream=sys.stderr, level=level.upper(), format=form)


class _Process:
    """One router process."""

    def __init__(self, expanded: Expanded, profile: Profile, state_dir: Path, file: Path | None) -> None:
        self.expanded = expanded
        self.profile = profile
        self.fleet = expanded.fleet
        self.router: RouterSpec = expanded.routers[0]
        self.state_dir = state_dir
        self.keys = read_keys(expanded.fleet.routers.tenants, expanded.fleet.model.name)
        self.file = None if file is None else file.absolute()

    async def run(self) -> None:
        """Serve until told to stop."""
        fleet, loop = self.fleet, asyncio.get_running_loop()
        reach = engine_reach(self.expanded)
        journal = self._journal()
        shell = Shell(Settings.of(fleet), loop, journal, Metrics())
        started_t = shell.now()
        self._begin_journal(journal, started_t)
        probes = Probes(shell, fleet.recovery.probe_interval_s, fleet.recovery.probe_timeout_s)
        shell.probe = probes.now
        members = Members(shell, probes, reach)
        gateway = Gateway(shell, fleet, self.keys)
        self._use_measured_profiles(members, probes)
        state = lambda: router_state(shell, fleet.metadata.name, fleet.model.name, members.urls, started_t)  # noqa: E731
        admin = Admin(shell, state)
        listeners = await open_listeners(self.expanded, self.state_dir, gateway, admin)
        reloader = Reloader(self.file, self.expanded, shell, members, probes, gateway, listeners)
        admin.reload = reloader.start
        members.use_profile(fleet, self.profile)
        for engine in self.expanded.engines:
            members.join(engine)
        shell.begin()
        shell.every(CERTIFICATES_S, listeners.check_certificates)
        shell.every(HOUSEKEEPING_S, lambda: _keep_house(shell, gateway.connections, admin.connections))
        gc.collect()
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD, 20, 100)
        _watchdog(shell)
        router = self.router
        engines = len(
            self.expanded.engines
        )  # ports, not addresses: a log leaves the house more often than a fleet file
        log.info(
            "serving %s: clients on port %d, operators on port %d, %d engines, pid %d",
            *(fleet.metadata.name, router.port, router.admin_port, engines, os.getpid()),
        )
        notify("READY=1")
        loop.add_signal_handler(signal.SIGHUP, _reload, reloader)
        await _until_told(loop)
        loop.add_signal_handler(signal.SIGHUP, lambda: None)
        shutdown_s = shell.settings.serving.shutdown_s
        log.info("stopping: %d requests may finish within %g s", len(shell.exchanges), shutdown_s)
        notify("STOPPING=1")
        await _stop(shell, gateway, listeners, shutdown_s, loop)
        await probes.stop()
        shell.stop()
        for connection in list(admin.connections):
            connection.abort()
        journal.close()

    def _use_measured_profiles(self, members: Members, probes: Probes) -> None:
        """Simulated engines are as fast as their profile says by definition; others by what was measured."""
        fleet = self.fleet
        if fleet.profiles.path is None or isinstance(fleet.engines.runtime, SimulatedRuntime):
            return
        speeds = Speeds(members, self.expanded.profiles)
        probes.on_life = lambda engine, page: speeds.look(engine, page, fleet, probes.timeout_s)

    def _journal(self) -> Journal:
        settings = self.fleet.observability.journal
        directory = Path(settings.path) if settings.path else self.state_dir / "journal"
        return Journal(directory, max_bytes=settings.max_bytes, keep=settings.keep)

    def _begin_journal(self, journal: Journal, started_t: float) -> None:
        fleet = self.fleet
        journal.row(StartRow(started_t, utc_now(), fleet.metadata.name, narwhal.__version__))
        journal.begin_events(started_t, {"type": "Settings", **Settings.of(fleet).document()})


def _keep_house(shell: Shell, *open_ones: set[Connection]) -> None:
    """Close connections that clients leave idle or fill too slowly, and those that engines would close soon."""
    now = shell.now()
    for connections in open_ones:
        for connection in list(connections):
            connection.check_time(now)
    for pool in shell.pools.values():
        pool.prune()


def _warn_of_what_has_no_effect(expanded: Expanded) -> None:
    """Keys of the fleet file that a later version serves: say so, rather than let someone rely on them."""
    fleet = expanded.fleet
    keys = {
        "routers.standby": fleet.routers.standby is not None,
        "lease": fleet.lease.backend == "etcd",
        "profiles.path": fleet.profiles.path is not None and isinstance(fleet.engines.runtime, SimulatedRuntime),
        "recovery.state_path": fleet.recovery.state_path is not None,
    }
    for key in (key for key, is_set in keys.items() if is_set):
        log.warning("%s has no effect in this version of narwhal-serve", key)


def _raise_file_limit() -> None:
    """Each stream needs two descriptors; the usual soft limit of 1,024 would be met by 500 streams."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _reload(reloader: Reloader) -> None:
    """SIGHUP. systemd is told when it begins and ends (`Type=notify-reload`)."""
    notify(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")
    reloader.start(by="SIGHUP", check=False, done=lambda outcome: notify("READY=1"))


async def _until_told(loop: asyncio.AbstractEventLoop) -> None:
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    await told.wait()


async def _stop(
    shell: Shell, gateway: Gateway, listeners: Listeners, seconds: float, loop: asyncio.AbstractEventLoop
) -> None:
    """Accept nothing new, let running requests finish for a while, then end them. A second signal ends them at once."""
    shell.refusing = STOPPING
    listeners.close_clients()
    for connection in list(gateway.connections):
        connection.shut()
    hurry = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, hurry.set)
    await _while(lambda: shell.exchanges, seconds, hurry)
    for exchange in list(shell.exchanges.values()):
        shell.stopped(exchange)
    for connection in list(gateway.connections):
        connection.shut()
    await _while(lambda: gateway.connections, FLUSH_S, asyncio.Event())  # last bytes, on their way to slow clients
    listeners.close_admin()


async def _while(busy: Callable[[], Collection[object]], seconds: float, enough: asyncio.Event) -> None:
    """Wait while there is something, for a time at most, or until it is enough."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while busy() and not enough.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await enough.wait()


def _watchdog(shell: Shell) -> None:
    """Tell systemd from the loop that the loop turns, twice in each `WatchdogSec=`."""
    interval = os.environ.get("WATCHDOG_USEC", "")
    if interval.isdigit() and int(interval) > 0:
        shell.every(int(interval) / 2e6, lambda: notify("WATCHDOG=1"))


def notify(message: str) -> None:
    """Tell systemd, when it asked to be told (`Type=notify`)."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender, contextlib.suppress(OSError):
        sender.connect("\0" + path[1:] if path.startswith("@") else path)
        sender.send(message.encode())
