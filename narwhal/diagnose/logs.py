"""What the processes of a fleet have written: which unit of which host, and the command that shows its log."""

import contextlib
import os
import shlex
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from narwhal.fleet import Expanded

ROUTERS = {"router": "narwhal-router.service", "standby": "narwhal-standby.service"}
LINES = 100
"""Lines that are shown unless it is said."""
MOST_LINES = 100_000
"""With a span of time, in which there may be any number."""
_END_S = 5.0
_SUDO = 'S=; [ "$(id -u)" = 0 ] || { sudo -n true 2>/dev/null && S="sudo -n"; }; '
"""A unit's log is for root and the group systemd-journal."""


class NoLogError(Exception):
    """Nothing of the fleet has this name; the message says what has."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a log is."""

    host: str
    unit: str


@dataclass(frozen=True, slots=True)
class Wish:
    """How much of a log is wanted."""

    lines: int | None = None
    """The last so many; None: `LINES`, or all with `since_s`."""
    since_s: float | None = None
    """Of the last so many seconds; None: whenever."""
    follow: bool = False

    @property
    def most(self) -> int:
        """Lines at the most."""
        return self.lines or (LINES if self.since_s is None else MOST_LINES)


def place_of(name: str, expanded: Expanded) -> Place:
    """Host and unit of an engine (`HOST/N`), its sidecar (`HOST/N/attest`), or a router. Raises `NoLogError`."""
    for router in expanded.routers:
        if name == ("standby" if router.standby else "router"):
            return Place(router.host, ROUTERS[name])
    engine, _, sidecar = name.partition("/attest")
    found = next((each for each in expanded.engines if each.id == engine and not sidecar), None)
    if found is not None:
        return Place(found.host, f"narwhal-{'attest' if name != engine else 'engine'}@{found.index}.service")
    raise NoLogError(f"nothing of the fleet is called {name!r}; there are {', '.join(names(expanded))}")


def names(expanded: Expanded) -> list[str]:
    """All that have logs: routers first, then the engines."""
    routers = ["standby" if router.standby else "router" for router in expanded.routers]
    return [*routers, *(engine.id for engine in expanded.engines)]


def unit_script(unit: str, wish: Wish) -> str:
    """The shell command that shows a unit's log on its host.

    One that follows ends with its standard input: a shell of ours holds it, so that nothing stays on the host when
    ssh, or this machine, is gone.
    """
    argv = ["journalctl", "--no-pager", "--no-hostname", "-o", "short-iso", "-n", str(wish.most), "-u", unit]
    if wish.since_s is not None:
        argv.append(f"--since=-{wish.since_s:.0f}s")
    show = f"$S {shlex.join(argv)}"
    return _SUDO + (_until_closed(f"{show} -f") if wish.follow else show)


def file_script(file: Path, wish: Wish) -> str:
    """The same for a log that is a file of this machine. Its lines are not dated, so a span says nothing."""
    show = f"tail -n {wish.most} {shlex.quote(str(file))}"
    return f"S=; {_until_closed(show.replace('tail', 'tail -F', 1))}" if wish.follow else show


def _until_closed(show: str) -> str:
    """Run a command that does not end by itself until standard input does."""
    return (
        f"exec 3<&0; {show} </dev/null & j=$!; {{ cat <&3; $S kill $j; }} >/dev/null 2>&1 & c=$!; "
        "wait $j; r=$?; kill $c 2>/dev/null; exit $r"
    )


def show(argv: list[str]) -> int:
    """Run a command that shows a log on this terminal; its exit code. Ctrl-C ends it, wherever it runs."""
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, start_new_session=True)
    assert process.stdin is not None
    try:
        return process.wait()
    finally:
        process.stdin.close()  # what runs at the other end goes by this
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def command(reach: list[str], script: str) -> list[str]:
    """The command that runs a script at the end of a way; empty: on this machine."""
    return [*reach, script] if reach else ["sh", "-c", script]
