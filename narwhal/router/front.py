"""Where clients come in: their listener and gateway over the requests of this process, from start to graceful stop."""

import asyncio
import contextlib
from collections.abc import Callable, Collection
from typing import Protocol

from narwhal.fleet.expanded import Expanded
from narwhal.fleet.model import Fleet
from narwhal.router.gateway import Gateway
from narwhal.router.http import Connection
from narwhal.router.listeners import open_tcp
from narwhal.router.requests import STOPPING, Requests
from narwhal.router.sockets import Server
from narwhal.router.tenants import Keys

FLUSH_S = 1.0
"""How long the last bytes may take to leave, in seconds."""


class Clients(Protocol):
    """The client side of a router: in the process that decides, or in others."""

    async def open(self, expanded: Expanded) -> Server:
        """Open the client listener of the primary router. Raises `ServeError`."""

    async def ready(self, stop: asyncio.Event) -> bool:
        """Wait until clients are accepted, or until it is to stop: False."""

    def take(self, fleet: Fleet, keys: Keys) -> None:
        """Have what a fleet file says for whatever arrives from now on."""

    def keep_house(self) -> None:
        """Close what clients leave idle or fill too slowly; called about once a second."""

    async def drain(self, seconds: float, hurry: asyncio.Event) -> None:
        """Let requests finish for a while, none new, then end them; at once when told to hurry."""


class Front:
    """The client side, in this process. `workers`: how many processes share the port; None: no other may."""

    def __init__(self, requests: Requests, fleet: Fleet, keys: Keys, workers: int | None = None) -> None:
        self.gateway = Gateway(requests, fleet, keys, workers or 1)
        self.server: Server | None = None
        self._requests = requests
        self._shared = workers is not None

    async def open(self, expanded: Expanded) -> Server:
        """Open the client listener of the primary router. Raises `ServeError`."""
        router, tls = expanded.routers[0], expanded.fleet.routers.tls
        where = ("clients", router.bind, router.port, tls, "routers")
        self.server = await open_tcp(*where, self.gateway, shared=self._shared)
        return self.server

    async def ready(self, stop: asyncio.Event) -> bool:
        """Clients are accepted from `open` on."""
        return True

    def take(self, fleet: Fleet, keys: Keys) -> None:
        """Have what a fleet file says for whatever arrives from now on."""
        self.gateway.keys = keys
        self.gateway.retune(fleet)

    def keep_house(self) -> None:
        """Close connections that clients leave idle or fill too slowly, and those that engines would close soon."""
        check_times(self.gateway.connections, self._requests.now())
        for pool in self._requests.pools.values():
            pool.prune()

    async def drain(self, seconds: float, hurry: asyncio.Event) -> None:
        """Accept nothing new, let running requests finish for a while, then end them."""
        requests, connections = self._requests, self.gateway.connections
        requests.refusing = requests.refusing or STOPPING
        if self.server is not None:
            self.server.close()
        for connection in list(connections):
            connection.shut()
        await until(lambda: not requests.exchanges, seconds, hurry)
        for exchange in list(requests.exchanges.values()):
            requests.stopped(exchange)
        for connection in list(connections):
            connection.shut()
        await until(lambda: not connections, FLUSH_S, asyncio.Event())  # last bytes, on their way to slow clients


def check_times(connections: Collection[Connection], now: float) -> None:
    """Close connections that are idle for too long, filled too slowly, or not read."""
    for connection in list(connections):
        connection.check_time(now)


async def until(met: Callable[[], bool], seconds: float, enough: asyncio.Event) -> None:
    """Wait until something holds, for a time at most, or until it is enough."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not met() and not enough.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await enough.wait()
