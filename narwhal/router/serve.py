"""Starting the router: what holds for all of its processes, and which processes there are."""

import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket
import sys
from pathlib import Path

import uvloop

from narwhal.fleet.expanded import Expanded
from narwhal.fleet.model import SimulatedRuntime
from narwhal.fleet.places import admin_socket
from narwhal.router.errors import ServeError
from narwhal.router.members import fleet_profile
from narwhal.router.orders import Signals
from narwhal.router.process import Part, alone, run
from narwhal.router.workers import supervise

log = logging.getLogger("narwhal.router")


def serve(
    expanded: Expanded, *, state_dir: Path, file: Path | None = None, standby: bool = False, resume: bool = False
) -> None:
    """Run the primary router of a fleet, or its standby, until SIGTERM or SIGINT; SIGHUP reads `file` again.

    `resume`: go on from what was kept in `recovery.state_path`.

    Raises `ServeError` when it cannot listen, `ProfileError` when the engines' profile cannot be used.
    """
    try:
        both, expanded = expanded, expanded.of_router(standby=standby)
    except ValueError as error:
        raise ServeError(str(error)) from None
    _check_state_is_shared(both, state_dir, standby=standby)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # one that comes before the start is over must not end it
    _log_to_stderr(expanded.fleet.observability.log_level)
    _warn_of_what_has_no_effect(expanded)
    _raise_file_limit()
    part = Part(expanded, fleet_profile(expanded.fleet), state_dir, None if file is None else file.absolute(), resume)
    if expanded.fleet.routers.workers > 1:
        supervise(part)
        return
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_alone(part))


def _check_state_is_shared(both: Expanded, state_dir: Path, *, standby: bool) -> None:
    """Refuse a state directory in which the other router of this host is not: each would lock a file of its own.

    Raises `ServeError`.
    """
    routers = both.fleet.routers
    lease = both.fleet.lease
    if routers.standby is None or not both.on_one_host or lease.backend != "file" or lease.path is not None:
        return
    other = both.of_router(standby=not standby)
    spec = other.routers[0]
    address = "127.0.0.1" if spec.admin_bind == "0.0.0.0" else spec.admin_bind  # noqa: S104
    if admin_socket(other, state_dir).exists() or not _listens(address, spec.admin_port):
        return
    raise ServeError(
        f"the other router of this host listens on port {spec.admin_port}, and its state is not in {state_dir}: both "
        "would lead. Give both the same --state-dir, or name lease.path in the fleet file"
    )


def _listens(address: str, port: int) -> bool:
    """Whether anybody takes connections there."""
    try:
        socket.create_connection((address, port), timeout=1.0).close()
    except OSError:
        return False
    return True


async def _alone(part: Part) -> None:
    await run(part, alone(part), Signals(asyncio.get_running_loop()))


def _log_to_stderr(level: str) -> None:
    """One line an event on stderr: what a terminal shows, and the journal of a unit, which adds the time itself."""
    form = "%(levelname)s %(message)s" if "JOURNAL_STREAM" in os.environ else "%(asctime)s %(levelname)s %(message)s"
    logging.basicConfig(stream=sys.stderr, level=level.upper(), format=form)


def _warn_of_what_has_no_effect(expanded: Expanded) -> None:
    """Keys of the fleet file that a later version serves: say so, rather than let someone rely on them."""
    fleet = expanded.fleet
    keys = {
        "profiles.path": fleet.profiles.path is not None and isinstance(fleet.engines.runtime, SimulatedRuntime),
    }
    for key in (key for key, is_set in keys.items() if is_set):
        log.warning("%s has no effect in this version of narwhal-serve", key)


def _raise_file_limit() -> None:
    """Each stream needs two descriptors; the usual soft limit of 1,024 would be met by 500 streams."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
