"""Installing what tests need, where this machine is Debian and we are root."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path


def install(*packages: str) -> str:
    """Install these packages of Debian's; returns why that cannot be done, or empty.

    Tests run in several processes, and apt-get takes one caller at a time: each waits for the others.
    """
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return f"on Debian, as root: apt-get install {' '.join(packages)}"
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}  # 1: no service is started
    with Path(tempfile.gettempdir(), "narwhal-tests-apt.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *packages]):
            argv = ["apt-get", "-o", "DPkg::Lock::Timeout=300", *command]
            done = subprocess.run(
                argv, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
            )
            if done.returncode:
                return f"{' '.join(packages)} cannot be installed: {done.stderr.strip()[-300:]}"
    return ""
