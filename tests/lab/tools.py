"""What the lab needs of the machine it runs on, and how it calls programs."""

import functools
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

_PACKAGES = {
    "systemd-nspawn": "systemd-container",
    "mmdebstrap": "mmdebstrap",
    "ssh": "openssh-client",
    "ip": "iproute2",
    "nft": "nftables",
}


@functools.cache
def provide() -> None:
    """Install the programs that are missing, where this machine is Debian and we are root. Raises `RuntimeError`."""
    if os.geteuid() != 0:
        raise RuntimeError("the lab boots hosts in namespaces, so it needs root")
    missing = sorted(package for program, package in _PACKAGES.items() if shutil.which(program) is None)
    if not missing:
        return
    if shutil.which("apt-get") is None:
        raise RuntimeError(f"the lab needs {', '.join(missing)}, and this machine has no apt-get")
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *missing]):
        subprocess.run(["apt-get", *command], check=True, env=environment, stdin=subprocess.DEVNULL)


def call(*argv: object, check: bool = True, text: str | None = None) -> "subprocess.CompletedProcess[str]":
    """Run a program to its end; what it prints comes back. Raises `RuntimeError` with its last words."""
    command = [str(part) for part in argv]
    done = subprocess.run(command, input=text or "", text=True, capture_output=True, check=False)
    if check and done.returncode:
        said = (done.stderr.strip() or done.stdout.strip())[-2000:]
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {said}")
    return done


def eventually(holds: Callable[[], bool], what: str, within_s: float = 120.0) -> None:
    """Look until something holds. Raises `TimeoutError`."""
    end = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {within_s:g} s")
        time.sleep(0.05)  # the pause of the poll


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
