"""The engines' drills on real vLLM on the CPU, on one fleet."""

from pathlib import Path

import pytest

from narwhal.drills import REAL, run_drills
from narwhal.engine.cpu import NotInstallableError, prepare
from tests.conftest import NOT_INSTALLABLE

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]


def test_what_must_come_of_an_engines_fault_comes_of_it_on_vllm(tmp_path: Path) -> None:
    try:
        prepare(print)
    except NotInstallableError as error:
        pytest.skip(f"{NOT_INSTALLABLE}{error}")
    done = run_drills(REAL, print, real=True, where=tmp_path)
    assert [(one.name, one.outcome) for one in done] == [(drill.name, "passed") for drill in REAL], done[-1].reason
