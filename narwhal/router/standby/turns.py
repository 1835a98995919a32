"""What a router does as its turn comes and ends: what it opens, begins, and hands over."""

import asyncio
import logging
import time
from pathlib import Path

from narwhal.fleet.expanded import Expanded
from narwhal.router.admin import Admin
from narwhal.router.envelope import Reply
from narwhal.router.errors import ServeError
from narwhal.router.front import Clients
from narwhal.router.listeners import Listeners
from narwhal.router.members import Members
from narwhal.router.orders import Orders
from narwhal.router.reloader import Reloader
from narwhal.router.shell import Shell
from narwhal.router.standby.feed import LINE_S, Feed
from narwhal.router.standby.leadership import Leadership
from narwhal.router.standby.shown import LeaseCollector, lease_state
from narwhal.router.tries import Tries

log = logging.getLogger("narwhal.router")
HANDOVER_S = 10.0
"""How long the other router may take to lead, in seconds."""
BOTH_S = 1.0
"""How long both serve at a planned handover, in seconds: who goes by `/ready` sees the other one first."""
PORT_S = 10.0
"""How long the former leader may take to leave the port that both use, in seconds."""
_RETRY_S = 0.05


class Turns:
    """One router of two. `share_port`: its client listener is open only while it leads."""

    def __init__(
        self,
        shell: Shell,
        members: Members,
        tries: Tries,
        clients: Clients,
        listeners: Listeners,
        orders: Orders,
        expanded: Expanded,
        state_dir: Path,
    ) -> None:
        self.failure = ""
        """Why it cannot serve although it leads."""
        self._shell = shell
        self._tries = tries
        self._clients = clients
        self._listeners = listeners
        self._orders = orders
        self._expanded = expanded
        self._begun = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.leadership = Leadership(shell, members, expanded, state_dir, serve=self._serve, step_back=self._step_back)
        self.feed = Feed(shell, lambda: self.leadership.leads)

    def start(self, admin: Admin, reloader: Reloader, collector: LeaseCollector) -> None:
        """Stand by until the lease is held."""
        leadership, feed = self.leadership, self.feed
        admin.follow, admin.operator.hand_over = feed.serve, self.hand_over
        admin.operator.frozen = leadership.frozen
        admin.lease = lambda: lease_state(leadership, feed)
        reloader.frozen = lambda: leadership.frozen() if leadership.leads else ""
        collector.leadership, collector.feed = leadership, feed
        self._shell.every(LINE_S, feed.tick)
        leadership.start()

    def hand_over(self, reply: Reply) -> None:
        """Have the other router lead from now on, and say so."""
        if not self.feed.followers:
            reply.held("no router follows this one: start the standby, and try again once it does")
            return
        self._run(self._hand_over(reply))

    async def _hand_over(self, reply: Reply) -> None:
        if await self._pass_on():
            self.leadership.retire()
            leader = self.leadership.standing.holder.partition("/")[0]
            reply.done(f"the router on {leader} leads", leader=leader)
        else:
            reply.held(f"the standby did not take the lease within {HANDOVER_S:g} s; this router leads again")

    async def stop(self) -> None:
        """Have the other router lead before this one stops to accept, where there is one; then give the lease up."""
        if self.leadership.proven and self.feed.followers:
            handing = asyncio.ensure_future(self._pass_on())
            hurry = asyncio.ensure_future(self._orders.hurry.wait())
            await asyncio.wait((handing, hurry), return_when=asyncio.FIRST_COMPLETED)
            hurry.cancel()
            if not handing.done() or not handing.result():
                log.warning("the standby did not take over; it will once the lease has ended")
            handing.cancel()
        for task in self._tasks:
            task.cancel()
        await self.leadership.stop()

    async def _pass_on(self) -> bool:
        await self.feed.flush()
        if not await self.leadership.hand_over(HANDOVER_S):
            return False
        await asyncio.sleep(BOTH_S)
        return True

    def _serve(self) -> None:
        if self._expanded.share_port and not self._listeners.clients:
            self._run(self._open_clients())
        self._tries.armed_anew()
        if not self._begun:
            self._begun = True
            self._tries.begin()

    def _step_back(self) -> None:
        if self._expanded.share_port:
            self._listeners.close_clients()

    async def _open_clients(self) -> None:
        until_t = time.monotonic() + PORT_S
        while True:
            try:
                self._listeners.clients.append(await self._clients.open(self._expanded))
                return
            except ServeError as error:
                if time.monotonic() > until_t:
                    self.failure = str(error)  # the other one may be able to
                    self._orders.end()
                    return
            await asyncio.sleep(_RETRY_S)

    def _run(self, work: "asyncio._CoroutineLike[None]") -> None:
        task = self._shell.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
