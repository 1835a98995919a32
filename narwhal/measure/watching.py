"""Watching the router during a load: its state, its metrics, its journal, and when the load began on its clock."""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from narwhal.diagnose import AdminClient, RefusedError, UnreachableError
from narwhal.measure.checks import busy
from narwhal.measure.errors import BenchError
from narwhal.measure.evidence import BenchSample, BenchScrape, EngineSample
from narwhal.measure.load import Load
from narwhal.profiling import EngineError, EngineUrl, ask

State = Mapping[str, Any]
SAMPLE_S = 1.0
SCRAPE_EVERY = 5
"""Samples between two scrapes of the metrics."""
_ROWS_S = 15.0
"""How long rows of requests that are over may take to be written."""
_LOOK_S = 0.25
_ENGINE_S = 5.0
"""How long an engine may take to tell its metrics."""


class Watch:
    """What the router and its engines say while a load runs.

    `engines` are those whose own metrics are read; one that cannot be reached from here is not asked again.
    """

    def __init__(self, admin: AdminClient, engines: Mapping[str, EngineUrl] | None = None) -> None:
        self.admin = admin
        self._engines = dict(engines or {})
        self.samples: list[BenchSample] = []
        self.scrapes: list[BenchScrape] = []
        self.rows: list[Mapping[str, Any]] = []
        """Rows of its journal since `begin`."""
        self._place: str | None = None
        self._offset_s = 0.0
        """The router's clock less this process's."""

    async def idle(self, wait_s: float) -> State:
        """The state of a fleet that is idle and healthy. Raises `BenchError` when it is not within `wait_s`."""
        until_t = time.monotonic() + wait_s
        while True:
            state = await self._ask(self.admin.state)
            reason = busy(state)
            if not reason:
                return state
            if time.monotonic() > until_t:
                hint = (
                    "narwhal status and narwhal why say more; nothing is measured on a fleet that is at work or unwell"
                )
                raise BenchError("not_idle", f"the fleet is not idle and healthy: {reason}", hint, failed=True)
            await asyncio.sleep(_LOOK_S)

    async def begin(self) -> None:
        """Take note of where the journal ends, and of the router's clock."""
        asked_t = time.monotonic()
        document = await self._ask(lambda: self.admin.journal(None))
        self._offset_s = document["now_t"] - (asked_t + time.monotonic()) / 2
        self._place = document["place"]

    def router_t(self, t: float) -> float:
        """A time of this process's monotonic clock on the router's."""
        return t + self._offset_s

    async def during(self, load: Load, each: Callable[[], None]) -> None:
        """Look at the router once a second until it is cancelled; `each` is called each time."""
        while True:
            try:
                t_s = load.elapsed_s()
                state = await asyncio.to_thread(self.admin.state)
                self.samples.append(_sample(t_s, load.in_flight, state))
                if len(self.samples) % SCRAPE_EVERY == 1:
                    text = await asyncio.to_thread(self.admin.metrics)
                    self.scrapes.append(BenchScrape(t_s=round(t_s, 3), text=text))
                    await self.scrape_engines(load)
            except (UnreachableError, RefusedError):
                pass  # the checks at the end say what became of it
            each()
            await asyncio.sleep(SAMPLE_S)

    async def scrape_engines(self, load: Load) -> None:
        """Keep what the engines' own metrics say now."""
        await asyncio.gather(*(self._scrape(url, load) for url in list(self._engines.values())))

    async def _scrape(self, url: EngineUrl, load: Load) -> None:
        t_s = load.elapsed_s()
        try:
            answer = await ask(url, "/metrics", timeout_s=_ENGINE_S)
        except EngineError:
            self._engines.pop(url.id, None)
            return
        text = answer.body.decode("utf-8", "replace")
        self.scrapes.append(BenchScrape(t_s=round(t_s, 3), engine=url.id, text=text))

    async def read_rows(self, ids: set[str]) -> None:
        """Read the journal on until it has a row of each of these requests, or nothing comes for a while."""
        missing = set(ids)
        until_t = time.monotonic() + _ROWS_S
        while True:
            document = await self._ask(lambda: self.admin.journal(self._place))
            self._place = document["place"]
            self.rows += document["rows"]
            missing -= {row.get("id", "") for row in document["rows"]}
            if not document["more"] and (not missing or time.monotonic() > until_t):
                return
            if not document["more"]:
                await asyncio.sleep(_LOOK_S)

    async def after(self) -> State:
        """The state after the load."""
        return await self._ask(self.admin.state)

    async def _ask(self, question: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        try:
            return await asyncio.to_thread(question)
        except (UnreachableError, RefusedError) as error:
            hint = "is it the admin listener (routers.admin.port), may the token read it, and does the router run?"
            raise BenchError("router", str(error), hint, failed=True) from None


def _sample(t_s: float, running: int, state: State) -> BenchSample:
    return BenchSample(
        t_s=round(t_s, 3),
        running=running,
        prefill=state["split"]["prefill"],
        decode=state["split"]["decode"],
        load_prefill=state["load"]["prefill"],
        load_decode=state["load"]["decode"],
        waiting=state["queue"]["requests"],
        engines=[
            EngineSample(**{name: engine[name] for name in EngineSample.model_fields}) for engine in state["engines"]
        ],
    )
