"""The client side of a router whose clients are served by workers, as the process that decides sees it."""

import asyncio

from narwhal.fleet.expanded import Expanded
from narwhal.fleet.model import Fleet
from narwhal.router.front import FLUSH_S, until
from narwhal.router.listeners import open_certificate
from narwhal.router.sockets import Server
from narwhal.router.tenants import Keys
from narwhal.router.tls import Certificate
from narwhal.router.workers.hub import Hub
from narwhal.router.workers.wire import Drain, Hurry

GRACE_S = 5.0
"""How much longer than its requests a worker may take to end, in seconds."""


class Elsewhere:
    """Stands for the listeners of the workers."""

    def close(self) -> None:
        """Workers close theirs when they are told to drain."""


class SecuredElsewhere(Elsewhere):
    """The same with TLS: the certificate is read here too, so that one that cannot be used is refused here."""

    name = "clients"

    def __init__(self, hub: Hub, certificate: Certificate) -> None:
        self.certificate = certificate
        self.handshakes = hub.handshakes
        self._hub = hub

    @property
    def open_handshakes(self) -> int:
        """Handshakes under way."""
        return sum(worker.open_handshakes for worker in self._hub.present)


class WorkersClients:
    """Tells workers what `Front` would do."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    async def open(self, expanded: Expanded) -> Server:
        """Stand for the workers' listeners. Raises `ServeError` when their certificate cannot be used."""
        certificate = open_certificate(expanded.fleet.routers.tls, "routers")
        return Elsewhere() if certificate is None else SecuredElsewhere(self._hub, certificate)

    async def ready(self, stop: asyncio.Event) -> bool:
        """Wait until every worker accepts clients, or until it is to stop: False."""
        waits = [asyncio.ensure_future(event.wait()) for event in (self._hub.begun, stop)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        return self._hub.begun.is_set()

    def take(self, fleet: Fleet, keys: Keys) -> None:
        """Have every worker go by this fleet file. They read the keys again themselves: none travels."""
        self._hub.use(fleet)

    def keep_house(self) -> None:
        """Close connections that engines would close soon."""
        for pool in self._hub.pools.values():
            pool.prune()

    async def drain(self, seconds: float, hurry: asyncio.Event) -> None:
        """Let the workers' requests finish for a while, none new, then end them."""
        hub = self._hub
        hub.tell_all(Drain(seconds))
        await until(lambda: not any(hub.present), seconds + FLUSH_S + GRACE_S, hurry)
        hub.tell_all(Hurry())
        await until(lambda: not any(hub.present), FLUSH_S + GRACE_S, asyncio.Event())
