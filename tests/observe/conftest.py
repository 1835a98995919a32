import pytest

from tests.observe.tools import provide


@pytest.fixture(scope="session")
def programs() -> None:
    """promtool, prometheus and Alertmanager are there."""
    provide()
