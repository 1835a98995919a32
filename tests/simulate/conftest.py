import pytest

from narwhal.control import Curves
from narwhal.fleet import load_profile


@pytest.fixture(scope="session")
def curves() -> Curves:
    return Curves.from_profile(load_profile("8b-h100"))
