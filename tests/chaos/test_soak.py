"""The soak: `make soak` for twenty minutes (SOAK_SECONDS), here for a little more than one."""

import os
from pathlib import Path

import pytest

from narwhal.drills import soak

SECONDS = float(os.environ.get("NARWHAL_SOAK_SECONDS", "70"))
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(SECONDS + 900)]


def test_nothing_is_missing_and_nothing_is_left_after_many_faults(tmp_path: Path) -> None:
    figures = soak(tmp_path, SECONDS, say=print)
    print(figures)
    assert figures["faults"]
    assert figures["requests"]
