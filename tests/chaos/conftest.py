"""What drills need is installed where it may be: none of them is to be unavailable here."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {"ip": "iproute2", "nsenter": "util-linux", "openssl": "openssl"}


@pytest.fixture(scope="session", autouse=True)
def _tools() -> None:
    lacking = [package for tool, package in PACKAGES.items() if shutil.which(tool) is None]
    commands = [["apt-get", "install", "-y", "-q", *lacking]] if lacking else []
    for command in (*commands, [str(ROOT / "scripts/etcd")]):
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        if found.returncode != 0:
            pytest.skip(found.stderr.strip())
