"""Every drill, on real processes: outcomes and counts, no times."""

from pathlib import Path

import pytest

from narwhal.drills import DRILLS, Drill, run_drills

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


@pytest.mark.parametrize("drill", DRILLS, ids=lambda drill: drill.name)
def test_what_must_come_of_a_fault_comes_of_it(drill: Drill, tmp_path: Path) -> None:
    [done] = run_drills([drill], print, where=tmp_path)
    assert done.outcome == "passed", f"{done.reason}; {done.kept}"
