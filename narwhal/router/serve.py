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
from urllib.parse import urlsplit

import msgspec
import uvloop

import narwhal
from narwhal.control import Curves, Settings
from narwhal.control.events import EngineJoined
from narwhal.fleet import load_profile
from narwhal.fleet.expanded import Expanded, RouterSpec
from narwhal.fleet.model import Secret, SecretFromEnv, SimulatedRuntime
from narwhal.router.admin import Admin
from narwhal.router.gateway import Gateway
from narwhal.router.http import App, Connection
from narwhal.router.journal import Journal, utc_now
from narwhal.router.metrics import Metrics
from narwhal.router.probes import Probes
from narwhal.router.rows import StartRow
from narwhal.router.shell import Shell
from narwhal.router.state import router_state
from narwhal.router.upstream import Pool

log = logging.getLogger("narwhal.router")
HOUSEKEEPING_S = 1.0
"""How often idle and overdue connections are looked for."""
GC_THRESHOLD = 50_000
"""Objects between two collections of the youngest generation: streams make no cycles, so there is little to find."""


FLUSH_S = 1.0
"""How long the last bytes may take to leave, in seconds."""


class ServeError(Exception):
    """The router cannot serve; the message says why and what to do."""


def serve(expanded: Expanded, *, state_dir: Path) -> None:
    """Run the primary router of a fleet until SIGTERM or SIGINT. Raises `ServeError` when it cannot listen."""
    _log_to_stderr(expanded.fleet.observability.log_level)
    _refuse_what_is_not_served(expanded)
    _warn_of_what_has_no_effect(expanded)
    _raise_file_limit()
    token = _secret(expanded.fleet.routers.admin.token)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_Process(expanded, state_dir, token).run())


def _log_to_stderr(level: str) -> None:
    """One line an event on stderr: what a terminal shows, and the journal of a unit, which adds the time itself."""
    form = "%(levelname)s %(message)s" if "JOURNAL_STREAM" in os.environ else "%(asctime)s %(levelname)s %(message)s"
    logging.basicConfig(stream=sys.stderr, level=level.upper(), format=form)


class _Process:
    """One router process."""

    def __init__(self, expanded: Expanded, state_dir: Path, token: str) -> None:
        self.expanded = expanded
        self.fleet = expanded.fleet
        self.router: RouterSpec = expanded.routers[0]
        self.state_dir = state_dir
        self.token = token

    async def run(self) -> None:
        """Serve until told to stop."""
        fleet, loop = self.fleet, asyncio.get_running_loop()
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
        admin = Admin(
            shell,
            lambda: router_state(shell, fleet.metadata.name, fleet.model.name, urls, started_t),
            token=self.token,
            loopback=fleet.routers.admin.bind == "loopback",
        )
        servers = [
            await _listen(loop, gateway, self.router.bind, self.router.port, "routers.port"),
            await _listen(loop, admin, self.router.admin_bind, self.router.admin_port, "routers.admin.port"),
        ]
        self._join_engines(shell, probes)
        shell.begin()
        shell.every(HOUSEKEEPING_S, lambda: _keep_house(shell, gateway, admin))
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
        await _stop(shell, gateway, servers, fleet.serving.shutdown_s, loop)
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
        parts = {name: getattr(fleet, name).model_dump() for name in ("slo", "serving", "controller", "recovery")}
        journal.first_event_line({"type": "Settings", **parts, "kv_lease_s": fleet.engines.kv_lease_s})

    def _join_engines(self, shell: Shell, probes: Probes) -> None:
        runtime = self.fleet.engines.runtime
        name = runtime.profile if isinstance(runtime, SimulatedRuntime) else self.fleet.profiles.prior
        curves = _curves(self.expanded, Curves.from_profile(load_profile(name)))
        for engine in self.expanded.engines:
            address, port = _address(engine.url)
            shell.pools[engine.id] = Pool(shell.loop, address, port)
            measured = isinstance(runtime, SimulatedRuntime)
            shell.feed(
                EngineJoined(
                    shell.now(), engine.id, engine.role, curves, measured, engine.pin, "", engine.shared_device or ""
                )
            )
            probes.watch(engine.id)


def _keep_house(shell: Shell, *apps: App) -> None:
    """Close connections that clients leave idle or fill too slowly, and those that engines would close soon."""
    now = shell.now()
    for app in apps:
        for connection in list(app.connections):
            connection.check_time(now)
    for pool in shell.pools.values():
        pool.prune()


def _refuse_what_is_not_served(expanded: Expanded) -> None:
    """A key that protects something must not be passed over in silence."""
    routers = expanded.fleet.routers
    for key, said in (("routers.tls", routers.tls), ("routers.admin.tls", routers.admin.tls)):
        if said is not None:
            raise ServeError(f"{key}: this version does not serve TLS; end it in front of the router, on loopback")
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


def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "127.0.0.1", parts.port or 80


def _secret(secret: Secret | None) -> str:
    if secret is None:
        return ""
    if isinstance(secret, SecretFromEnv):
        value = os.environ.get(secret.env, "")
        where = f"environment variable {secret.env}"
    else:
        where = secret.file
        try:
            value = Path(secret.file).read_text().rstrip("\n")
        except OSError as error:
            raise ServeError(f"routers.admin.token: {where}: {error.strerror}") from None
    if not value:
        raise ServeError(f"routers.admin.token: {where} is empty")
    return value


async def _listen(loop: asyncio.AbstractEventLoop, app: App, address: str, port: int, key: str) -> asyncio.Server:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    # IPPROTO_TCP by name: accepted sockets otherwise miss TCP_NODELAY, which costs 44 ms to the first token
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address, port))
    except OSError as error:
        listener.close()
        raise ServeError(f"cannot listen on {address}:{port} ({key}): {error.strerror}") from None
    listener.setblocking(False)
    return await loop.create_server(lambda: Connection(app, loop), sock=listener, backlog=4096)


async def _until_told(loop: asyncio.AbstractEventLoop) -> None:
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    await told.wait()


async def _stop(
    shell: Shell, gateway: Gateway, servers: list[asyncio.Server], seconds: float, loop: asyncio.AbstractEventLoop
) -> None:
    """Accept nothing new, let running requests finish for a while, then end them. A second signal ends them at once."""
    shell.draining = True
    servers[0].close()
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
    servers[1].close()


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
