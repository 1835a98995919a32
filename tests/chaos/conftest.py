"""What drills need is installed where it may be: none of them is to be unavailable here."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session", autouse=True)
def _etcd() -> None:
    found = subprocess.run([ROOT / "scripts/etcd"], capture_output=True, text=True, check=False)
    if found.returncode != 0:
        pytest.skip(found.stderr.strip())
