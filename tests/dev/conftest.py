from collections.abc import Iterator
from pathlib import Path

import pytest

from narwhal.dev.instance import Instance
from narwhal.dev.process import stop_recorded
from narwhal.dev.template import FleetPlan, fleet_yaml


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Instance]:
    """A new instance; whatever a test starts in it is stopped."""
    made = Instance(tmp_path / "dev")
    made.create("simulated", 2, fleet_yaml(FleetPlan("dev", 2, 1)))
    yield made
    stop_recorded(made.run, deadline_s=2.0)
