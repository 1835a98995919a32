"""Which process is meant: boot id, pid and start time, so that a reused pid is never mistaken."""

import os
import signal
import time
from collections.abc import Iterable

from narwhal.documents import Model
from narwhal.engine.process import boot_id, start_ticks

_POLL_S = 0.02


class Identity(Model):
    """One life of one process."""

    boot_id: str
    """Kernel's id of this boot."""
    pid: int
    start_ticks: int
    """Start time in clock ticks since boot: field 22 of `/proc/PID/stat`."""


def identify(pid: int) -> Identity | None:
    """The identity of a running process; None when there is none, or only its zombie."""
    ticks = start_ticks(pid)
    return None if ticks is None else Identity(boot_id=boot_id(), pid=pid, start_ticks=ticks)


def alive(identity: Identity) -> bool:
    """Whether exactly this process still runs."""
    return identify(identity.pid) == identity


def send(identity: Identity, number: signal.Signals) -> bool:
    """Signal exactly this process; False when it is gone.

    The pid is pinned by a pidfd before its identity is compared, so no other process can take its place
    between the look and the signal.
    """
    try:
        pidfd = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return False
    try:
        if not alive(identity):
            return False
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(pidfd)
    return True


def stop(identities: Iterable[Identity], deadline_s: float) -> list[Identity]:
    """End processes: SIGTERM, up to `deadline_s` for all together, then SIGKILL. Returns the killed ones."""
    waiting = [identity for identity in identities if send(identity, signal.SIGTERM)]
    waiting = _wait_gone(waiting, deadline_s)
    killed = [identity for identity in waiting if send(identity, signal.SIGKILL)]
    _wait_gone(killed, 5.0)
    return killed


def _wait_gone(identities: list[Identity], deadline_s: float) -> list[Identity]:
    """Wait until the processes are gone; returns those that are not, at the deadline."""
    until_t = time.monotonic() + deadline_s
    while identities := [identity for identity in identities if alive(identity)]:
        if time.monotonic() >= until_t:
            break
        time.sleep(_POLL_S)
    return identities
