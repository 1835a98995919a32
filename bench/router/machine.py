"""The facts that a table of measurements needs beside it."""

import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import peers

import narwhal


def machine() -> dict[str, Any]:
    """Processor, cores that may be used, kernel, Python."""
    info = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in info if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def versions(names: Sequence[str]) -> dict[str, str]:
    """Of Narwhal, what its data plane stands on, and these peers."""
    ours = {"narwhal": narwhal.__version__, **{name: version(name) for name in ("uvloop", "httptools", "msgspec")}}
    return ours | {name: peers.pin(name).partition("==")[2] for name in names if peers.PEERS[name].pinned}
