"""What a reload answers when something in the router itself goes wrong."""

import asyncio
import logging
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from narwhal.router import reloader
from narwhal.router.reload import Reload
from narwhal.router.reloader import Reloader
from tests.router.test_reload import expanded


def test_a_defect_in_the_router_is_answered_and_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr(reloader, "_open", broken)
    reloads: Counter[str] = Counter()

    async def run() -> Reload:
        loop = asyncio.get_running_loop()
        shell = cast(Any, SimpleNamespace(loop=loop, metrics=SimpleNamespace(reloads=reloads)))
        nothing = cast(Any, None)
        told: asyncio.Future[Reload] = loop.create_future()
        mine = Reloader(Path("fleet.yaml"), expanded(), shell, nothing, nothing, nothing, nothing)
        mine.start(by="test", check=False, done=told.set_result)
        return await asyncio.wait_for(told, 60)

    with caplog.at_level(logging.ERROR):
        outcome = asyncio.run(run())
    assert [error.code for error in outcome.errors] == ["bug"]
    assert reloads == {"failed": 1}
    assert "RuntimeError: boom" in caplog.text
