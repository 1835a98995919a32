"""Processes that are measured: start, end, CPU and memory of the whole tree, the limit of open files."""

import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from tools import ToolError

PATIENCE_S = 60.0
"""How long something may take to start on a busy machine."""
GRACE_S = 10.0
"""How long a router may take to end before it is killed."""


def raise_file_limit(needed: int) -> None:
    """Let this process and its children open so many files. Raises `ToolError` where that is not allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= needed:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(hard, needed), max(hard, needed)))
    except (ValueError, OSError):
        message = f"{needed} open files are needed, and the hard limit is {hard}"
        raise ToolError(f"{message}; raise it (as root: ulimit -Hn {needed}) or ask for fewer --streams") from None


def start(argv: list[str], log: Path, *, env: Mapping[str, str] | None = None) -> "subprocess.Popen[bytes]":
    """Start a process in a group of its own: Ctrl-C is for us, who end it."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as out:
        return subprocess.Popen(
            argv,
            stdout=out,
            stderr=out,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )


def end(process: "subprocess.Popen[bytes]") -> None:
    """End a process and what it started: asked first, then killed."""
    pids = list(tree(process.pid))
    _signal(pids, signal.SIGTERM)
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        pass
    finally:
        _signal([*pids, *tree(process.pid)], signal.SIGKILL)
        process.wait()


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def tree(pid: int) -> Iterator[int]:
    """A process and all that descend from it."""
    yield pid
    for task in _tasks(pid):
        try:
            children = (task / "children").read_text().split()
        except OSError:
            continue
        for child in children:
            yield from tree(int(child))


def _tasks(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []


def cpu_ns(pid: int) -> dict[str, int]:
    """Nanoseconds on a CPU so far, by thread, of the whole tree. Jiffies of /proc/PID/stat would be too coarse."""
    used = {}
    for each in tree(pid):
        for task in _tasks(each):
            try:
                used[task.name] = int((task / "schedstat").read_text().split()[0])
            except OSError:
                continue
    return used


def cpu_since_s(pid: int, before: Mapping[str, int]) -> float:
    """Seconds on a CPU since `before`. What a thread used that has ended since is not counted."""
    return sum(ns - before.get(thread, 0) for thread, ns in cpu_ns(pid).items()) / 1e9


def pss_bytes(pid: int) -> int:
    """Memory of the tree as PSS: what is shared is counted once, divided among those who share it."""
    total = 0
    for each in tree(pid):
        try:
            lines = Path(f"/proc/{each}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total


def eventually(met: Callable[[], object], *, within_s: float = PATIENCE_S, every_s: float = 0.05) -> bool:
    """Ask `met()` again and again until it holds; False when it did not in time."""
    until_t = time.monotonic() + within_s
    while not met():
        if time.monotonic() > until_t:
            return False
        time.sleep(every_s)
    return True
