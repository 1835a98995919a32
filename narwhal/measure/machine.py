"""The machine that the load comes from: its facts, and how much of its CPU time it had for itself."""

import os
import platform
from importlib.metadata import version
from pathlib import Path

import narwhal
from narwhal.measure.evidence import MachineFacts

_STOLEN = 7
"""Place of the stolen ticks on the first line of `/proc/stat`, after its name."""
_TIMES = 8
"""Times on that line that add up to all: those after them are parts of the first two."""


def cpu_ticks(stat: Path = Path("/proc/stat")) -> tuple[int, int] | None:
    """Ticks that the hypervisor gave to others, and all ticks, of all cores since boot; None where it is not told."""
    try:
        ticks = [int(word) for word in stat.read_text().split("\n", 1)[0].split()[1:]]
    except (OSError, ValueError):
        return None
    return (ticks[_STOLEN], sum(ticks[:_TIMES])) if len(ticks) >= _TIMES else None


def stolen_share(before: tuple[int, int] | None, after: tuple[int, int] | None) -> float | None:
    """Share of the CPU time between two looks that others got; None where it is not told."""
    if before is None or after is None or after[1] <= before[1]:
        return None
    return min(max((after[0] - before[0]) / (after[1] - before[1]), 0.0), 1.0)


def machine_facts(stolen: float | None, load_1m: float) -> MachineFacts:
    """The facts of this machine, with the share that was stolen during a load."""
    return MachineFacts(
        cpu=_processor(),
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        kernel=platform.release(),
        python=platform.python_version(),
        versions={"narwhal": narwhal.__version__, **{name: version(name) for name in ("uvloop", "httptools")}},
        load_1m=round(load_1m, 2),
        stolen_share=stolen,
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
