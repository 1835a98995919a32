"""What the kernel tells of a process: who it is, since when, and which one listens on a port. Light to import."""

import os
from pathlib import Path

_PROC = Path("/proc")
_LISTENING = "0A"


def boot_id() -> str:
    """The kernel's id of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def start_ticks(pid: int) -> int | None:
    """Start of a running process in clock ticks since boot; None when there is none, or only its zombie."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat[stat.rindex(")") + 2 :].split()  # the name before it may hold spaces and parentheses
    return None if fields[0] in ("Z", "X") else int(fields[19])


def started_at_s(ticks: int) -> float:
    """The start as Unix time, in seconds."""
    for line in (_PROC / "stat").read_text().splitlines():
        if line.startswith("btime "):
            return int(line.split()[1]) + ticks / os.sysconf("SC_CLK_TCK")
    raise ValueError("/proc/stat has no btime")


def executable(pid: int) -> str | None:
    """Path of the program that a process runs; None when this user may not see it."""
    try:
        return os.readlink(_PROC / str(pid) / "exe")
    except OSError:
        return None


def listener(port: int) -> int | None:
    """The process that listens on a TCP port of this host: the oldest, when several share the socket.

    None when nobody does, or when it belongs to another user and this one may not see it.
    """
    inodes = {f"socket:[{inode}]" for name in ("tcp", "tcp6") for inode in _listening(name, port)}
    found = [pid for pid in _pids() if inodes and _holds(pid, inodes)]
    return min(found, key=lambda pid: (start_ticks(pid) or 0, pid), default=None)


def _listening(name: str, port: int) -> list[str]:
    try:
        rows = (_PROC / "net" / name).read_text().splitlines()[1:]
    except OSError:
        return []
    parts = [row.split() for row in rows]
    return [p[9] for p in parts if p[3] == _LISTENING and int(p[1].rsplit(":", 1)[1], 16) == port]


def _pids() -> list[int]:
    return [int(path.name) for path in _PROC.iterdir() if path.name.isdigit()]


def _holds(pid: int, links: set[str]) -> bool:
    try:
        with os.scandir(_PROC / str(pid) / "fd") as entries:
            return any(_link(entry.path) in links for entry in entries)
    except OSError:
        return False


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
