"""Three hosts for the whole run of these tests, and a fleet on them that is packaged and rendered once."""

from collections.abc import Iterator

import pytest

from tests.lab.hosts import Lab, lab_of
from tests.lab.playing import Fleet


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    with lab_of(3) as lab:
        for host in ("h1", "h2"):
            lab.ssh(host, "mkdir -p /models/tiny && echo '{}' > /models/tiny/config.json")
        yield lab


@pytest.fixture(scope="session")
def fleet(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    fleet = Fleet(lab, tmp_path_factory.mktemp("fleet"))
    fleet.narwhal("package", str(fleet.file), "--write")
    fleet.render()
    return fleet
