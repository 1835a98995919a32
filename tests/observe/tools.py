"""The programs of Prometheus, as Debian has them."""

import os
import shutil
import subprocess

import pytest

PACKAGES = {"prometheus": "prometheus", "promtool": "prometheus", "amtool": "prometheus-alertmanager"}


def provide() -> None:
    """Install what is missing, where this machine is Debian and we are root; else the tests skip and say so."""
    missing = sorted({package for program, package in PACKAGES.items() if shutil.which(program) is None})
    if not missing:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        pytest.skip(f"needs {', '.join(missing)}")
    environ = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}  # 1: no service is started
    for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *missing]):
        done = subprocess.run(["apt-get", *command], env=environ, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"{', '.join(missing)} cannot be installed: {done.stderr.strip()[-300:]}")


def call(*argv: object) -> str:
    """Run a program to its end; returns what it prints."""
    done = subprocess.run([str(part) for part in argv], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
