"""The process that decides: shell, probes, listeners; from start to graceful stop."""

import asyncio
import gc
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import narwhal
from narwhal.control import Settings
from narwhal.engine.notify import watchdog_s
from narwhal.fleet import Expanded, Profile
from narwhal.fleet.model import SimulatedRuntime
from narwhal.router.admin import Admin
from narwhal.router.errors import ServeError
from narwhal.router.front import Clients, Front, check_times
from narwhal.router.journal import Journal, utc_now
from narwhal.router.listeners import open_listeners
from narwhal.router.live import TICK_S as LIVE_S
from narwhal.router.members import Members
from narwhal.router.metrics import Metrics
from narwhal.router.orders import Orders
from narwhal.router.probes import Probes
from narwhal.router.reach import engine_reach
from narwhal.router.reloader import Reloader
from narwhal.router.requests import STOPPING
from narwhal.router.resume import LOOK_S, Keeping, resume
from narwhal.router.rows import StartRow
from narwhal.router.shell import Shell
from narwhal.router.speeds import Speeds
from narwhal.router.standby import STANDBY, LeaseCollector, has_lease
from narwhal.router.standby.turns import Turns
from narwhal.router.state import router_state
from narwhal.router.targets import targets
from narwhal.router.tenants import Keys, read_keys
from narwhal.router.tries import Tries

log = logging.getLogger("narwhal.router")
HOUSEKEEPING_S = 1.0
"""How often idle and overdue connections are looked for."""
CERTIFICATES_S = 2.0
"""How often certificates are looked at for a replacement."""
GC_THRESHOLD = 50_000
"""Objects between two collections of the youngest generation: streams make no cycles, so there is little to find."""


@dataclass(frozen=True, slots=True)
class Part:
    """What a router is started with."""

    expanded: Expanded
    profile: Profile
    """Of its engines, or a prior."""
    state_dir: Path
    file: Path | None
    """Where the fleet file stands; None: it came from elsewhere."""
    resume: bool = False
    """Whether it goes on from what it keeps on disk."""

    @property
    def journal_dir(self) -> Path:
        """Where the journal is kept; a standby on its primary's host keeps its own beside it."""
        given = self.expanded.fleet.observability.journal.path
        return self._own(Path(given) if given else self.state_dir / "journal")

    @property
    def state_path(self) -> Path | None:
        """Where its state is kept, if it is."""
        given = self.expanded.fleet.recovery.state_path
        return None if given is None else self._own(self.state_dir / given)

    def _own(self, path: Path) -> Path:
        apart = self.expanded.routers[0].standby and self.expanded.on_one_host
        return path.with_name(f"{path.name}-standby") if apart else path


Assemble = Callable[[Settings, Journal, Keys], tuple[Shell, Clients]]
"""Makes the shell, and the client side that goes with it, on the running loop."""


def alone(part: Part) -> Assemble:
    """Everything in one process."""

    def assemble(settings: Settings, journal: Journal, keys: Keys) -> tuple[Shell, Clients]:
        shell = Shell(settings, asyncio.get_running_loop(), journal, Metrics())
        front = Front(shell, part.expanded.fleet, keys)
        shell.clients = front.gateway.connections
        return shell, front

    return assemble


async def run(part: Part, assemble: Assemble, orders: Orders) -> None:
    """Serve until ordered to stop. Raises `ServeError`."""
    expanded, fleet = part.expanded, part.expanded.fleet
    keys = read_keys(fleet.routers.tenants, fleet.model.name)
    reach = engine_reach(fleet, expanded.urls)
    settings = fleet.observability.journal
    journal = Journal(part.journal_dir, max_bytes=settings.max_bytes, keep=settings.keep)
    shell, clients = assemble(Settings.of(fleet), journal, keys)
    if has_lease(fleet):
        shell.refusing = STANDBY  # before any worker is told anything
    started_t = shell.now()
    journal.row(StartRow(started_t, utc_now(), fleet.metadata.name, narwhal.__version__))
    journal.begin_events(started_t, {"type": "Settings", **Settings.of(fleet).document()})
    probes = Probes(shell, fleet.recovery.probe_interval_s, fleet.recovery.probe_timeout_s)
    shell.probe = probes.now
    members = Members(shell, probes, reach)
    tries = Tries(shell, members, fleet)
    shell.find_out = tries.start
    _use_measured_profiles(expanded, members, probes)
    state = lambda: router_state(shell, fleet.metadata.name, fleet.model.name, members.urls, started_t)  # noqa: E731
    admin = Admin(shell, state)
    admin.targets = lambda: targets(expanded, members.specs.values())
    opened = [] if expanded.share_port else [await clients.open(expanded)]
    listeners = await open_listeners(expanded, part.state_dir, opened, admin)
    reloader = Reloader(part.file, expanded, shell, members, probes, clients, listeners)
    admin.operator.reload = reloader.start
    members.use_profile(fleet, part.profile)
    for engine in expanded.engines:
        members.join(engine)
    keeping = _keep_state(part, shell, members, admin)
    shell.begin()
    collector = LeaseCollector()
    admin.register(collector)
    turns: Turns | None = None
    if has_lease(fleet):
        turns = Turns(shell, members, tries, clients, listeners, orders, expanded, part.state_dir)
        keeping.leads = lambda: turns.leadership.leads
        turns.start(admin, reloader, collector)
    else:
        tries.begin()
    shell.every(LOOK_S, keeping.look)
    shell.every(LIVE_S, admin.live.tick)
    shell.every(CERTIFICATES_S, listeners.check_certificates)
    shell.every(HOUSEKEEPING_S, clients.keep_house)
    shell.every(HOUSEKEEPING_S, lambda: check_times(admin.connections, shell.now()))
    calm_collector()
    if await clients.ready(orders.stop):
        _say_serving(expanded, shell, orders, reloader)
    await orders.stop.wait()
    orders.reload = lambda: None
    shutdown_s = shell.settings.serving.shutdown_s
    log.info("stopping: %d requests may finish within %g s", shell.open_requests, shutdown_s)
    orders.tell("STOPPING=1")
    if turns is not None:
        await turns.stop()
    shell.refusing = STOPPING
    listeners.close_clients()
    await clients.drain(shutdown_s, orders.hurry)
    await keeping.stop()
    listeners.close_admin()
    await tries.stop()
    await probes.stop()
    shell.stop()
    for connection in list(admin.connections):
        connection.abort()
    journal.close()
    if turns is not None and turns.failure:
        raise ServeError(turns.failure)


def _keep_state(part: Part, shell: Shell, members: Members, admin: Admin) -> Keeping:
    """Go on from what is kept on disk, where that is wanted, and have it kept, where the fleet file says where."""
    if part.resume and part.state_path is not None:
        resume(shell, members, part.state_path, leased=has_lease(part.expanded.fleet))
    keeping = Keeping(shell, part.state_path)
    admin.register(keeping)
    return keeping


def calm_collector() -> None:
    """Have the garbage collector leave alone what is there now, and come rarely."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 20, 100)


def _use_measured_profiles(expanded: Expanded, members: Members, probes: Probes) -> None:
    """Simulated engines are as fast as their profile says by definition; others by what was measured."""
    fleet = expanded.fleet
    if fleet.profiles.path is None or isinstance(fleet.engines.runtime, SimulatedRuntime):
        return
    speeds = Speeds(members, expanded.profiles)
    probes.on_life = lambda engine, page: speeds.look(engine, page, fleet, probes.timeout_s)


def _say_serving(expanded: Expanded, shell: Shell, orders: Orders, reloader: Reloader) -> None:
    """Clients are accepted: say it, and take orders.

    Ports, not addresses: a log leaves the house more often than a fleet file.
    """
    router, engines = expanded.routers[0], len(expanded.engines)
    word = "standing by for" if shell.refusing is not None else "serving"
    log.info(
        "%s %s: clients on port %d, operators on port %d, %d engines, pid %d",
        *(word, expanded.fleet.metadata.name, router.port, router.admin_port, engines, orders.pid),
    )
    _watchdog(shell, orders)
    orders.tell("READY=1")
    orders.reload = lambda: _reload(reloader, orders)


def _reload(reloader: Reloader, orders: Orders) -> None:
    """SIGHUP. systemd is told when it begins and ends (`Type=notify-reload`)."""
    orders.tell(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")
    reloader.start(by="SIGHUP", check=False, done=lambda outcome: orders.tell("READY=1"))


def _watchdog(shell: Shell, orders: Orders) -> None:
    """Tell systemd from the loop that the loop turns, twice in each `WatchdogSec=`."""
    interval_s = watchdog_s(os.environ)
    if interval_s is not None:
        shell.every(interval_s, lambda: orders.tell("WATCHDOG=1"))
