"""One router's part of two: it waits until it holds the lease, takes over, writes the role map, and steps back."""

import asyncio
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from narwhal.control.admission import Refusal
from narwhal.control.commands import MoveRole
from narwhal.control.events import LeaseChanged, MoveFailed, Role, RoleMoved
from narwhal.control.snapshot import SnapshotError
from narwhal.control.succession import RoleMap, follow_map, presume_handoffs, role_map, succeed
from narwhal.fleet.expanded import Expanded
from narwhal.fleet.model import EtcdLease, FileLease, Fleet
from narwhal.router.errors import ServeError
from narwhal.router.lease import Keeper, Standing, Store, StoreError, open_store
from narwhal.router.lease.keeper import Role as Leading
from narwhal.router.members import Members
from narwhal.router.shell import Shell
from narwhal.router.standby.follower import Follower
from narwhal.router.standby.line import state_of
from narwhal.router.standby.peer import connect_to

log = logging.getLogger("narwhal.router")
BEAT_S = 0.1
"""How often the loop shows that it is alive, and looks whether the lease is still proven and the map to be written."""
FILE_POLL_S = 0.1
PATIENCE_S = 5.0
"""How long a standby waits for a router to follow before it is content to know nothing."""
STANDBY = Refusal("standby", "this router stands by; another one serves", 1.0, 503)
LEADERLESS = Refusal("standby", "this router stands by, and knows of no other that serves", 1.0, 503)
DEPOSED = Refusal("deposed", "this router led until another took over; ask that one", 1.0, 503)


def has_lease(fleet: Fleet) -> bool:
    """Whether a router of this fleet has to hold a lease: not one that is alone."""
    return fleet.routers.standby is not None or fleet.lease.backend == "etcd"


class Leadership:
    """Lives on the loop; the keeper of the lease and the follower are threads.

    `serve`: called when this router begins to lead, once control knows what there is to know; `step_back`: when
    another leads.
    """

    def __init__(
        self,
        shell: Shell,
        members: Members,
        expanded: Expanded,
        state_dir: Path,
        *,
        serve: Callable[[], None],
        step_back: Callable[[], None],
    ) -> None:
        self.standing = Standing(Leading.standby)
        self.terms = 0
        """Times that this router began to lead."""
        self.writes = {"done": 0, "failed": 0}
        """Role maps that the store took, or did not."""
        self._shell = shell
        self._members = members
        self._serve = serve
        self._step_back = step_back
        self._deposed = asyncio.Event()
        self._standby = expanded.routers[0].standby
        self._began_t = time.monotonic()
        self._found: bytes | None = None
        """The role map as it stood when the lease was won."""
        self._term = 0
        """Epoch of the lease that is made use of; 0: none yet."""
        self._moves: dict[str, Role] = {}
        """Moves that the store has not heard of yet."""
        self._written = b""
        """The map as the store has it, as far as is known."""
        self._writing = b""
        """The map that is on its way there."""
        self._stopped = False
        self._hands_over = False
        peer = expanded.peer
        self.follower = (
            None if peer is None else Follower(connect_to(expanded, peer, state_dir), lambda: not self.leads)
        )
        lease = expanded.fleet.lease
        store = _open(lease, expanded, state_dir)
        poll_s = min(0.5, lease.ttl_s / 5) if isinstance(lease, EtcdLease) else FILE_POLL_S
        self._keeper = Keeper(
            store,
            f"{expanded.routers[0].host}/{os.urandom(6).hex()}/{'standby' if self._standby else 'primary'}",
            poll_s=poll_s,
            tell=self._tell,
            taken=self._taken,
            candidate=False,
        )
        self._standing_for = False
        """Whether it is a candidate."""

    # What others ask

    @property
    def leads(self) -> bool:
        """Whether this router serves: it leads, or led and has not heard of another since."""
        return self.standing.role is Leading.leader

    @property
    def proven(self) -> bool:
        """Whether the lease is proven now."""
        return self.standing.proven(time.monotonic())

    def frozen(self) -> str:
        """Why nothing that the role map holds may change; empty: it may."""
        if self._notice():
            return ""
        if self.standing.role is Leading.standby:
            return f"this router stands by: {self.standing.trouble or f'ask the one that leads{self._which()}'}"
        if self.standing.role is Leading.deposed:
            return f"this router led until another took over: ask that one{self._which()}"
        return (
            f"the lease is unproven{f' ({self.standing.trouble})' if self.standing.trouble else ''}: nothing is changed"
        )

    def _which(self) -> str:
        """Who leads, for an operator; empty: it is not known."""
        host, _, which = self.standing.holder.partition("/")
        return f", the {which.rpartition('/')[2]} on {host}" if host else ""

    # Life

    def start(self) -> None:
        """Stand by, and campaign."""
        shell = self._shell
        shell.move = self.move
        shell.feed(LeaseChanged(shell.now(), False))
        self._beat()
        shell.every(BEAT_S, self._beat)
        self._keeper.start()
        if self.follower is not None:
            self.follower.start()

    async def stop(self) -> None:
        """Give the lease up."""
        self._stopped = True
        if self.follower is not None:
            self.follower.stop()
        await asyncio.to_thread(self._keeper.stop)

    def _beat(self) -> None:
        self._keeper.beat()
        if self._notice():
            self._write_changes()
        if not self._hands_over and not self._standing_for and self._may_stand():
            self._standing_for = True
            self._keeper.stand(True)

    def _notice(self) -> bool:
        """Have control know whether the lease is proven, and say it."""
        proven = self.proven
        if self._shell.control.pool.frozen is proven:
            self._shell.feed(LeaseChanged(self._shell.now(), proven))
        return proven

    def _may_stand(self) -> bool:
        """Whether it knows what there is to know, or there is nobody who could tell."""
        if not self._standby or self.follower is None or self.follower.known is not None:
            return True
        return time.monotonic() - self._began_t >= PATIENCE_S

    # The lease

    def _taken(self, found: bytes | None) -> None:
        """On the keeper's thread, before it tells that it leads."""
        self._found = found

    def _tell(self, standing: Standing) -> None:
        """On the keeper's thread."""
        self._shell.loop.call_soon_threadsafe(self._heard, standing)

    def _heard(self, standing: Standing) -> None:
        before, self.standing = self.standing, standing
        if self._stopped:
            return
        if before.trouble != standing.trouble:
            log.log(
                logging.WARNING if standing.trouble else logging.INFO,
                "lease: %s",
                standing.trouble or "its store answers again",
            )
            if self._shell.refusing in (STANDBY, LEADERLESS):
                self._shell.refusing = LEADERLESS if standing.trouble else STANDBY
        if standing.role is Leading.leader and standing.epoch != self._term:
            self._lead(before, standing)
        elif standing.role is Leading.deposed and before.role is not Leading.deposed:
            self._deposed.set()
            if self._hands_over:
                log.info("the other router leads (epoch %d)", standing.epoch)
                return
            log.error("another router leads (epoch %d): this one serves no new request", standing.epoch)
            self.retire()

    async def hand_over(self, seconds: float) -> bool:
        """Have the other router lead, for which this one stops to be a candidate; whether it does within this time.

        This one serves on meanwhile, and afterwards until it is told to `retire`.
        """
        self._deposed.clear()
        self._hands_over = True
        try:
            self._keeper.resign()
            async with asyncio.timeout(seconds):
                await self._deposed.wait()
        except TimeoutError:
            return False
        finally:
            self._hands_over = False
            self._standing_for = False
        return True

    def retire(self) -> None:
        """Another router leads: serve no new request."""
        self._shell.refusing = DEPOSED
        self._shell.feed(LeaseChanged(self._shell.now(), False))
        self._step_back()

    def _lead(self, before: Standing, standing: Standing) -> None:
        self._term = standing.epoch
        self.terms += 1
        if before.role is not Leading.leader:
            self._inherit()
        self._follow_map()
        self._shell.feed(LeaseChanged(self._shell.now(), True))
        self._members.rejoin()
        self._shell.refusing = None
        log.info("this router leads (epoch %d)", standing.epoch)
        self._serve()

    def _inherit(self) -> None:
        """Take over what the other router knew, where it told and was of this version."""
        shell, known = self._shell, None if self.follower is None else self.follower.known
        presume_handoffs(shell.control.pool, shell.now())
        if known is None:
            return
        try:
            control = succeed(shell.settings, state_of(known.pieces), known.shift_s, t=shell.now())
        except (SnapshotError, KeyError, msgspec.DecodeError) as error:
            log.error("what the other router knew cannot be read, it is learned again: %s", error)
            return
        shell.adopt(control)
        shell.tokens_per_byte = known.tokens_per_byte
        log.info("it goes on from what the other router knew %.1f s ago", time.monotonic() - known.heard_t)

    def _follow_map(self) -> None:
        self._written = self._writing = b""
        if self._found is None:
            return
        try:
            found = msgspec.json.decode(self._found, type=RoleMap)
        except msgspec.DecodeError as error:
            log.error("the role map cannot be read, roles are as this router knows them: %s", error)
            return
        follow_map(self._shell.control, found)
        self._shell.journal.begin_anew()
        self._written = self._found

    # The map

    def move(self, command: MoveRole) -> None:
        """Have a move in the map before it is done."""
        self._moves[command.engine] = command.role
        self._write(lambda written: self._moved(command, written))

    def _moved(self, command: MoveRole, written: bool) -> None:
        shell = self._shell
        self._moves.pop(command.engine, None)
        if written:
            shell.moved(command)
            shell.feed(RoleMoved(shell.now(), command.engine, command.role, command.epoch))
        else:
            why = "the role map could not be written"
            shell.feed(MoveFailed(shell.now(), command.engine, command.role, command.epoch, why))

    def _write_changes(self) -> None:
        """Write the map where it is not as the store has it; what is on its way is not written twice."""
        if self._encoded() not in (self._written, self._writing):
            self._write(lambda written: None)

    def _encoded(self) -> bytes:
        return msgspec.json.encode(role_map(self._shell.control.pool, self._moves))

    def _write(self, then: Callable[[bool], None]) -> None:
        value = self._writing = self._encoded()

        def done(written: bool) -> None:
            self.writes["done" if written else "failed"] += 1
            if self._writing == value:
                self._writing = b""
            # a store that did not answer may have it all the same: then it is written again
            self._written = value if written else b""
            then(written)

        self._keeper.write(value, lambda written: self._call(done, written))

    def _call(self, done: Callable[[bool], None], written: bool) -> None:
        """On the keeper's thread."""
        if not self._shell.loop.is_closed():
            self._shell.loop.call_soon_threadsafe(done, written)


def _open(lease: EtcdLease | FileLease, expanded: Expanded, state_dir: Path) -> Store:
    name, standby = expanded.fleet.metadata.name, expanded.routers[0].standby
    try:
        return open_store(lease, name, state_dir, os.environ, standby=standby)
    except StoreError as error:
        raise ServeError(f"lease: {error}") from None
