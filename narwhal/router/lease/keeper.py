"""Holding the lease: a thread that campaigns, renews, and writes the role map, beside the router's loop.

A lease is proven until `ttl_s` after the last successful renewal was *sent*, on the monotonic clock, so a frozen or
slow router never believes longer in its lease than the store does. It renews only while the router's loop is alive.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from narwhal.router.lease.store import LostError, Store, StoreError, Term

log = logging.getLogger("narwhal.router")


class Role(StrEnum):
    """What a router is by its lease."""

    standby = "standby"
    """Another leads, or nobody yet."""
    leader = "leader"
    """It holds the lease, and has proof of it; or had, and has not heard of another since."""
    deposed = "deposed"
    """It led, and another leads now."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What a router knows of its lease."""

    role: Role
    epoch: int = 0
    """Of its own term, or of the leader it knows of."""
    proven_until_t: float = 0.0
    """Monotonic time until which the lease is proven; 0: it is not."""
    holder: str = ""
    """Who leads, as far as is known."""
    trouble: str = ""
    """Why the store cannot be used; empty while it answers."""

    def proven(self, now_t: float) -> bool:
        """Whether roles, pins, holds and generations may change now."""
        return self.role is Role.leader and now_t < self.proven_until_t


@dataclass(slots=True)
class _Write:
    """A role map to be written, and who wants to know."""

    value: bytes
    done: Callable[[bool], None]


class Keeper:
    """Keeps a router's standing. `tell` hears of every change, from the keeper's thread.

    `taken(map)` is called on that thread when the lease was won, with the map as it stood, before anybody hears of it.
    `candidate`: whether it may take the lease; a standby that has learned nothing yet need not.
    """

    def __init__(
        self,
        store: Store,
        holder: str,
        *,
        poll_s: float,
        tell: Callable[[Standing], None],
        taken: Callable[[bytes | None], None],
        candidate: bool = True,
        loop_patience_s: float = 5.0,
    ) -> None:
        self.standing = Standing(Role.standby)
        self._store = store
        self._holder = holder
        self._poll_s = poll_s
        self._tell = tell
        self._taken = taken
        self._candidate = candidate
        self._resigns = False
        self._loop_patience_s = loop_patience_s
        self._term: Term | None = None
        self._writes: list[_Write] = []
        self._beat_t = time.monotonic()
        self._wake = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)

    def start(self) -> None:
        """Begin to campaign."""
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Give the lease up and end the thread."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join(timeout_s)

    def beat(self) -> None:
        """The router's loop is alive: call it more often than `loop_patience_s`."""
        self._beat_t = time.monotonic()

    def stand(self, candidate: bool) -> None:
        """Be a candidate from now on, or be none."""
        with self._wake:
            self._candidate = candidate
            self._wake.notify()

    def resign(self) -> None:
        """Give the lease up for another to take, and be no candidate until told to `stand` again."""
        with self._wake:
            self._candidate, self._resigns = False, True
            self._wake.notify()

    def write(self, value: bytes, done: Callable[[bool], None]) -> None:
        """Write the role map; `done` hears on the keeper's thread whether the store has it."""
        with self._wake:
            self._writes.append(_Write(value, done))
            self._wake.notify()

    def _run(self) -> None:
        while not self._stopping:
            due_t = time.monotonic() + self._poll_s
            self._step()
            with self._wake:
                while not self._wanted() and (left_s := due_t - time.monotonic()) > 0:
                    self._wake.wait(left_s)
        self._refuse_writes()
        if self._term is not None:
            try:
                self._store.resign(self._term)
            except StoreError as error:
                log.warning("the lease could not be given up, it ends by itself: %s", error)
        self._store.close()

    def _wanted(self) -> bool:
        """Whether there is something to do before the next poll is due."""
        return bool(self._stopping or self._writes or self._resigns)

    def _step(self) -> None:
        """One look at the lease, and the writes that wait."""
        try:
            if self._resigns:
                self._give_up()
            if self._term is None:
                self._look()
            elif time.monotonic() - self._beat_t < self._loop_patience_s:
                self._prove(self._term)
            self._write_all()
        except LostError as error:
            log.error("the lease is lost: %s", error)
            self._term = None
            self._refuse_writes()
            self._look_again()
        except StoreError as error:
            self._refuse_writes()
            self._report(trouble=str(error))

    def _give_up(self) -> None:
        """Resign, and go on with the frozen map until another leads."""
        term, self._term, self._resigns = self._term, None, False
        if term is not None:
            self._refuse_writes()
            now = self.standing
            self._set(Standing(now.role, now.epoch, 0.0, now.holder))
            self._store.resign(term)

    def _look_again(self) -> None:
        try:
            self._look()
        except StoreError as error:
            self._report(trouble=str(error))

    def _look(self) -> None:
        """Take the lease if it is free and this router may have it; else see who leads."""
        sent_t = time.monotonic()
        term = self._store.campaign(self._holder) if self._candidate else None
        if term is None:
            leader = self._store.leader()
            led = self.standing.role is not Role.standby
            another = leader is not None and leader.epoch > self.standing.epoch
            if led and not another:
                self._report(trouble="")  # nobody leads yet: serve on with the frozen map
                return
            role = Role.deposed if led else Role.standby
            self._set(Standing(role, leader.epoch if leader else 0, 0.0, leader.holder if leader else ""))
            return
        self._taken(self._store.read())
        self._term = term
        self._set(Standing(Role.leader, term.epoch, sent_t + term.ttl_s, self._holder))

    def _prove(self, term: Term) -> None:
        sent_t = time.monotonic()
        self._store.renew(term)
        self._set(Standing(Role.leader, term.epoch, sent_t + term.ttl_s, self._holder))

    def _write_all(self) -> None:
        """Write the newest of the maps that wait; the older ones are in it."""
        with self._wake:
            waiting, self._writes = self._writes, []
        if not waiting:
            return
        if self._term is None:
            self._answer(waiting, False)
            return
        try:
            self._store.write(self._term, waiting[-1].value)
        except (LostError, StoreError):
            self._answer(waiting, False)
            raise
        self._answer(waiting, True)

    def _refuse_writes(self) -> None:
        with self._wake:
            waiting, self._writes = self._writes, []
        self._answer(waiting, False)

    def _answer(self, waiting: list[_Write], written: bool) -> None:
        for each in waiting:
            each.done(written)

    def _report(self, *, trouble: str) -> None:
        """The same standing, with or without trouble."""
        now = self.standing
        self._set(Standing(now.role, now.epoch, now.proven_until_t, now.holder, trouble))

    def _set(self, standing: Standing) -> None:
        before, self.standing = self.standing, standing
        if standing != before:
            self._tell(standing)
