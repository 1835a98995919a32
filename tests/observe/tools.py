"""The programs of Prometheus, as Debian has them."""

import shutil
import subprocess

import pytest

from tests.debian import install

PACKAGES = {"prometheus": "prometheus", "promtool": "prometheus", "amtool": "prometheus-alertmanager"}


def provide() -> None:
    """Install what is missing, where this machine is Debian and we are root; else the tests skip and say so."""
    missing = sorted({package for program, package in PACKAGES.items() if shutil.which(program) is None})
    if not missing:
        return
    if trouble := install(*missing):
        pytest.skip(trouble)


def call(*argv: object) -> str:
    """Run a program to its end; returns what it prints."""
    done = subprocess.run([str(part) for part in argv], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
