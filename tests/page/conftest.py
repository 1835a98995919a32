"""A browser for all tests of the page."""

from collections.abc import Iterator

import pytest

from tests.page.chromium import Browser, chromium


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("chromium")) as found:
        yield found
