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
from collections.abc import Callable, Collection
from pathlib import Path

import msgspec
import uvloop

import narwhal
from narwhal.control import Curves, Settings
from narwhal.control.events import EngineJoined
from narwhal.fleet import load_profile
from narwhal.fleet.expanded import Expanded, RouterSpec
from narwhal.fleet.model import SimulatedRuntime
from narwhal.router.admin import Admin
from narwhal.router.errors import ServeError
from narwhal.router.gateway import Gateway
from narwhal.router.http import Connection
from narwhal.router.journal import Journal, utc_now
from narwhal.router.listeners import Listeners, open_listeners
from narwhal.router.metrics import Metrics
from narwhal.router.probes import Probes
from narwhal.router.reach import Reach, engine_reach
from narwhal.router.rows import StartRow
from narwhal.router.shell import Shell
from narwhal.router.state import router_state

log = logging.getLogger("narwhal.router")
HOUSEKEEPING_S = 1.0
"""How often idle and overdue connections are looked for."""
CERTIFICATES_S = 2.0
"""How often certificates are looked at for a replacement."""
GC_THRESHOLD = 50_000
"""Objects between two collections of the youngest generation: streams make no cycles, so there is little to find."""


FLUSH_S = 1.0
"""How long the last bytes may take to leave, in seconds."""


def serve(expanded: Expanded, *, state_dir: Path) -> None:
    """Run the primary router of a fleet until SIGTERM or SIGINT. Raises `ServeError` when it cannot listen."""
    _log_to_stderr(expanded.fleet.observability.log_level)
    _refuse_what_is_not_served(expanded)
    _warn_of_what_has_no_effect(expanded)
    _raise_file_limit()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_Process(expanded, state_dir).run())


def _log_to_stderr(level: str) -> None:
    """One line an event on stderr: what a terminal shows, and the journal of a unit, which adds the time itself."""
    form = "%(levelname)s %(message)s" if "JOURNAL_STREAM" in os.environ else "%(asctime)s %(levelname)s %(message)s"
    logging.basicConfig(stream=sys.stderr, level=level.upper(), format=form)


class _Process:
    """One router process."""

    def __init__(self, expanded: Expanded, state_dir: Path) -> None:
        self.expanded = expanded
        self.fleet = expanded.fleet
        self.router: RouterSpec = expanded.routers[0]
        self.state_dir = state_dir

    async def run(self) -> None:
        """Serve until told to stop."""
        fleet, loop = self.fleet, asyncio.get_running_loop()
        reach = engine_reach(self.expanded)
        journal = self._journal()
        shell = Shell(_settings(self.expanded), loop, journal, Metrics())
        started_t = shell.now()
        self._begin_journal(journal, started_t)
        probes = Probes(shell, fleet.recovery.probe_interval_s, fleet.recovery.probe_timeout_s)
        shell.probe = probes.now
        urls = {engine.id: engine.url for engine in self.expanded.engines}
        gateway = Gateway(
            shell,
            fleet.model.name,
            max_body=fleet.serving.max_body_bytes,
            max_head=fleet.serving.max_header_bytes,
            media_hosts=fleet.serving.media_hosts,
        )
        state = lambda: router_state(shell, fleet.metadata.name, fleet.model.name, urls, started_t)  # noqa: E731
        admin = Admin(shell, state)
        listeners = await open_listeners(self.expanded, self.state_dir, gateway, admin)
        self._join_engines(shell, probes, reach)
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
        await _until_told(loop)
        log.info("stopping: %d requests may finish within %g s", len(shell.exchanges), fleet.serving.shutdown_s)
        notify("STOPPING=1")
        await _stop(shell, gateway, listeners, fleet.serving.shutdown_s, loop)
        await probes.stop()
        shell.stop()
        for connection in list(admin.connections):
            connection.abort()
        journal.close()

    def _journal(self) -> Journal:
        settings = self.fleet.observability.journal
        directory = Path(settings.path) if settings.path else self.state_dir / "journal"
        return Journal(directory, max_bytes=settings.max_bytes, keep=settings.keep)

    def _begin_journal(self, journal: Journal, started_t: float) -> None:
        fleet = self.fleet
        journal.row(StartRow(started_t, utc_now(), fleet.metadata.name, narwhal.__version__))
        journal.begin_events(started_t, {"type": "Settings", **_settings(self.expanded).document()})

    def _join_engines(self, shell: Shell, probes: Probes, reach: Reach) -> None:
        runtime = self.fleet.engines.runtime
        name = runtime.profile if isinstance(runtime, SimulatedRuntime) else self.fleet.profiles.prior
        curves = _curves(self.expanded, Curves.from_profile(load_profile(name)))
        for engine in self.expanded.engines:
            shell.pools[engine.id] = reach.pool(shell.loop, engine)
            measured = isinstance(runtime, SimulatedRuntime)
            shell.feed(
                EngineJoined(
                    shell.now(), engine.id, engine.role, curves, measured, engine.pin, "", engine.shared_device or ""
                )
            )
            probes.watch(engine.id)


def _keep_house(shell: Shell, *open_ones: set[Connection]) -> None:
    """Close connections that clients leave idle or fill too slowly, and those that engines would close soon."""
    now = shell.now()
    for connections in open_ones:
        for connection in list(connections):
            connection.check_time(now)
    for pool in shell.pools.values():
        pool.prune()


def _refuse_what_is_not_served(expanded: Expanded) -> None:
    """A key that protects something must not be passed over in silence."""
    routers = expanded.fleet.routers
    if any(tenant.keys for tenant in routers.tenants):
        raise ServeError("routers.tenants: this version does not check keys; leave the tenants out")


def _warn_of_what_has_no_effect(expanded: Expanded) -> None:
    """Keys of the fleet file that a later version serves: say so, rather than let someone rely on them."""
    fleet = expanded.fleet
    keys = {
        "routers.standby": fleet.routers.standby is not None,
        "routers.tenants": bool(fleet.routers.tenants),
        "lease": fleet.lease.backend == "etcd",
        "profiles.path": fleet.profiles.path is not None,
        "recovery.state_path": fleet.recovery.state_path is not None,
    }
    for key in (key for key, is_set in keys.items() if is_set):
        log.warning("%s has no effect in this version of narwhal-serve", key)


def _raise_file_limit() -> None:
    """Each stream needs two descriptors; the usual soft limit of 1,024 would be met by 500 streams."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _settings(expanded: Expanded) -> Settings:
    fleet = expanded.fleet
    return Settings(fleet.slo, fleet.serving, fleet.controller, fleet.recovery, fleet.engines.kv_lease_s)


def _curves(expanded: Expanded, base: Curves) -> Curves:
    """The profile's curves, at the simulated speed, with the limits that the fleet file sets."""
    engines = expanded.fleet.engines
    speed = engines.runtime.speed if isinstance(engines.runtime, SimulatedRuntime) else 1.0
    times = ("t_min_s", "a_s", "b_s", "c_s", "d0_s", "d1_s", "d2_s", "transfer_t0_s")
    scaled = {name: getattr(base, name) / speed for name in times}
    return msgspec.structs.replace(
        base,
        **scaled,
        transfer_bytes_per_s=base.transfer_bytes_per_s * speed,
        max_num_seqs=engines.max_num_seqs,
        chunk_tokens=engines.max_num_batched_tokens,
    )


async def _until_told(loop: asyncio.AbstractEventLoop) -> None:
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    await told.wait()


async def _stop(
    shell: Shell, gateway: Gateway, listeners: Listeners, seconds: float, loop: asyncio.AbstractEventLoop
) -> None:
    """Accept nothing new, let running requests finish for a while, then end them. A second signal ends them at once."""
    shell.draining = True
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
