"""Keeping what the router knows on disk, and going on from it after a crash."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

import narwhal
from narwhal.control.snapshot import Cut, SnapshotError
from narwhal.control.succession import RoleMap, follow_map, presume_handoffs, role_map, succeed
from narwhal.engine.process import boot_id
from narwhal.router import saved
from narwhal.router.members import Members
from narwhal.router.shell import Shell
from narwhal.router.standby import pieces, state_of

log = logging.getLogger("narwhal.router")
LOOK_S = 0.1
"""How often it is looked whether the role map has changed, which is kept at once, in seconds."""
SAVE_S = 5.0
"""How often everything is kept."""
PAUSE_S = 0.002
"""Between two pieces of work on one file, so that the loop gets the interpreter."""


class Keeping:
    """Writes the state to `path`; None: it is not kept."""

    def __init__(self, shell: Shell, path: Path | None) -> None:
        self.writes = {"done": 0, "failed": 0}
        self.leads: Callable[[], bool] = lambda: True
        """Whether this router's state is the fleet's; another's is not kept."""
        self._shell = shell
        self._path = path
        self._map = b""
        """The role map that was kept last."""
        self._next_t = 0.0
        self._error = ""
        """Why the last write failed."""
        self._task: asyncio.Task[None] | None = None

    def look(self) -> None:
        """Keep the state if it is time, or if what must not be lost has changed."""
        if self._path is None or self._task is not None or not self.leads():
            return
        found = msgspec.json.encode(role_map(self._shell.control.pool))
        if found != self._map or self._shell.now() >= self._next_t:
            self._next_t = self._shell.now() + SAVE_S
            self._task = self._shell.loop.create_task(self._save(found, self._path))

    async def stop(self) -> None:
        """Keep it for the last time."""
        if self._task is not None:
            await self._task
        if self._path is not None and self.leads():
            await self._save(b"", self._path)

    async def _save(self, found: bytes, path: Path) -> None:
        shell = self._shell
        try:
            cut, now_t = Cut(shell.control, residents=False), shell.now()
            known = role_map(shell.control.pool)
            await asyncio.to_thread(_write, path, cut, now_t, shell.tokens_per_byte, known)
        except Exception as error:
            self.writes["failed"] += 1
            self._note(getattr(error, "strerror", None) or str(error) or type(error).__name__)
        else:
            self.writes["done"] += 1
            self._map = found
            self._note("")
        finally:
            self._task = None

    def _note(self, error: str) -> None:
        """Say it once when writing begins to fail, and once when it does not any more."""
        if error != self._error:
            if error:
                log.error("the state cannot be kept in %s, serving goes on: %s", self._path, error)
            else:
                log.warning("the state is kept in %s again", self._path)
        self._error = error

    def collect(self) -> Iterable[Any]:
        """Its own metric; see the catalogue."""
        from prometheus_client.core import CounterMetricFamily

        writes = CounterMetricFamily("narwhal_state_writes", "Times the state was kept on disk.", labels=["outcome"])
        for outcome, number in self.writes.items() if self._path is not None else ():
            writes.add_metric([outcome], number)
        yield writes


def _write(path: Path, cut: Cut, now_t: float, tokens_per_byte: float, known: RoleMap) -> None:
    """On another thread. Raises `OSError`."""
    raw = {name: msgspec.Raw(piece) for name, piece in pieces(cut, lambda: time.sleep(PAUSE_S)).items()}
    saved.write(path, saved.Knowledge(narwhal.__version__, boot_id(), time.time(), now_t, tokens_per_byte, known, raw))


def resume(shell: Shell, members: Members, path: Path, *, leased: bool = False) -> None:
    """Go on from what is kept: roles, pins, holds, drains, lives and epoch, and what was learned.

    Engines get work once they are seen to live still. Where nothing can be read everything begins anew, but for what
    the role map of a lease holds, which `leased` says there is.
    """
    knowledge = saved.read(path)
    if knowledge is None:
        left = "roles, pins, drains and hold are those of the role map, the rest" if leased else "everything"
        log.warning("there is no state in %s to resume from: %s begins anew", path, left)
        return
    now_t = shell.now()
    if knowledge.version == narwhal.__version__:
        shift_s = saved.shift_s(knowledge, boot_id(), now_t, time.time())
        try:
            shell.adopt(succeed(shell.settings, state_of(knowledge.pieces), shift_s))
            shell.tokens_per_byte = knowledge.tokens_per_byte
        except (SnapshotError, KeyError, msgspec.DecodeError) as error:
            log.error(
                "of the state in %s only roles and drains can be used, the rest is learned again: %s", path, error
            )
    else:
        log.warning(
            "the state in %s is of narwhal %s: roles and drains are taken, the rest is learned again",
            *(path, knowledge.version),
        )
    pool = shell.control.pool
    follow_map(shell.control, knowledge.map)
    presume_handoffs(pool, now_t)
    for engine in pool.engines.values():
        engine.suspected = True  # it may be gone since; the next look tells
    pool.refresh()
    shell.journal.begin_anew()
    members.rejoin()
    age_s = max(time.time() - knowledge.written_at_s, 0.0)
    log.info(
        "it goes on from the state of %.0f s ago: %d role changes, %d engines", age_s, pool.epoch, len(pool.engines)
    )
