"""Looks at engines: `/health` and `/metrics`, each engine once an interval, ahead of its turn when control asks."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from narwhal.control.events import EngineDown, EngineObserved, EngineUp, FailureCause
from narwhal.engine.dialect import EngineMetrics
from narwhal.router.upstream import Pool, Upstream

if TYPE_CHECKING:
    from narwhal.router.shell import Shell

LATE_S = 0.5
"""A page that was given up so much later than it should have been says nothing about the engine."""


class RouterLateError(Exception):
    """The router itself had no time to read an answer."""


class _Answer:
    """Waits for one whole answer."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.future: asyncio.Future[tuple[int, bytes]] = loop.create_future()
        self.up: Upstream | None = None

    def answer_head(self, up: Upstream, status: int, length: int) -> bool:
        return False

    def answer_bytes(self, up: Upstream, data: bytes) -> None:
        """Never called: answers are collected."""

    def answer_done(self, up: Upstream, body: bytes) -> None:
        if not self.future.done():
            self.future.set_result((up.status, body))

    def answer_failed(self, up: Upstream, cause: FailureCause, message: str) -> None:
        if not self.future.done():
            self.future.set_exception(ConnectionRefusedError(message) if up.refused else OSError(message))

    def replaced(self, old: Upstream, new: Upstream) -> None:
        self.up = new


async def get(pool: Pool, path: str, timeout_s: float) -> tuple[int, bytes]:
    """GET a page of an engine: status and body.

    Raises `TimeoutError`, `OSError` when it broke, `RouterLateError` when it is the router that came too late.
    """
    begun_t = pool.loop.time()
    answer = _Answer(pool.loop)
    answer.up = pool.send(b"GET %s HTTP/1.1\r\n%s\r\n" % (path.encode(), pool.headers), answer)
    try:
        async with asyncio.timeout(timeout_s):
            return await answer.future
    except TimeoutError:
        answer.up.abort()
        if pool.loop.time() - begun_t > timeout_s + LATE_S:
            raise RouterLateError from None
        raise
    except BaseException:
        answer.up.abort()
        raise


class Probes:
    """One task an engine, kept until `forget` or `stop`. `interval_s` and `timeout_s` may be changed meanwhile."""

    def __init__(self, shell: "Shell", interval_s: float, timeout_s: float) -> None:
        self.interval_s = interval_s
        self.timeout_s = timeout_s
        self._shell = shell
        self._wake: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.on_life: Callable[[str, bytes], Awaitable[None]] | None = None
        """Called with an engine's metrics page when another process of it is seen, before control hears of it."""
        self._told: dict[str, tuple[str, str]] = {}
        """Start of each engine's process, and the generation that its names told then."""

    def watch(self, engine: str) -> None:
        """Look at an engine from now on."""
        self._wake[engine] = asyncio.Event()
        self._tasks[engine] = self._shell.loop.create_task(self._run(engine))

    def forget(self, engine: str) -> None:
        """Look at an engine no more."""
        del self._wake[engine]
        self._told.pop(engine, None)
        self._shell.seen.pop(engine, None)
        self._tasks.pop(engine).cancel()

    def now(self, engine: str) -> None:
        """Look at it ahead of its turn."""
        if engine in self._wake:
            self._wake[engine].set()

    async def stop(self) -> None:
        """End the looks."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _run(self, engine: str) -> None:
        wake = self._wake[engine]
        while True:
            wake.clear()
            try:
                await self._look(engine)
            except Exception as error:  # one look that goes wrong must not be the last
                self._shell.loop.call_exception_handler({"message": f"looking at {engine}", "exception": error})
            try:
                async with asyncio.timeout(self.interval_s):
                    await wake.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(min(0.05, self.interval_s))  # many failed legs ask for one look

    async def _look(self, engine: str) -> None:
        shell = self._shell
        try:
            status, seen, generation = await self._read(engine)
        except RouterLateError:
            return
        except TimeoutError:
            shell.feed(EngineDown(shell.now(), engine, "timeout"))
            return
        except OSError as error:
            shell.feed(EngineDown(shell.now(), engine, "connection", hard=isinstance(error, ConnectionRefusedError)))
            return
        if status != 200:
            shell.feed(EngineDown(shell.now(), engine, "status"))
            return
        shell.feed(EngineUp(shell.now(), engine, generation))
        if seen is not None:
            shell.feed(self._observed(engine, seen))

    def _observed(self, engine: str, seen: EngineMetrics) -> EngineObserved:
        """What is said, and its pace since the last look."""
        before, self._shell.seen[engine] = self._shell.seen.get(engine), seen
        intervals, seconds = 0, 0.0
        if before is not None and before.started_at == seen.started_at:
            intervals, seconds = seen.intervals - before.intervals, seen.intervals_s - before.intervals_s
        pace = (intervals, seconds / intervals) if intervals > 0 else (0, 0.0)
        load = seen.running, seen.waiting, seen.kv_used_tokens
        return EngineObserved(self._shell.now(), engine, *load, seen.tokens, *pace, seen.late_notifications)

    async def _read(self, engine: str) -> tuple[int, EngineMetrics | None, str]:
        """Ask an engine: the status of the first page that is not 200, its metrics, its generation."""
        pool, dialect = self._shell.pools[engine], self._shell.dialect
        status, _ = await get(pool, "/health", self.timeout_s)
        if status != 200:
            return status, None, ""
        status, page = await get(pool, "/metrics", self.timeout_s)
        if status != 200:
            return status, None, ""
        seen = dialect.metrics(page.decode("utf-8", "replace"))
        started_at = seen.started_at if seen else ""
        known = self._told.get(engine)
        if known is None or not started_at or known[0] != started_at:  # names cannot change within a life
            status, names = await get(pool, "/v1/models", self.timeout_s)
            if status not in (200, 404):
                return status, None, ""
            if self.on_life is not None:
                await self.on_life(engine, page)
            known = self._told[engine] = started_at, dialect.generation(names)
        return 200, seen, known[1] or started_at
