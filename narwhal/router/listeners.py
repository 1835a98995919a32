"""The router's listeners: clients over TCP, operators over TCP and a Unix socket; TLS where the fleet file wants it."""

import asyncio
import logging
import os
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from narwhal.fleet.expanded import Expanded
from narwhal.fleet.model import Admin as AdminSettings
from narwhal.fleet.model import Tls
from narwhal.fleet.places import admin_socket
from narwhal.fleet.secrets import SecretError
from narwhal.router.admin import Admin, Door
from narwhal.router.app import App
from narwhal.router.callers import TcpRule, UnixRule
from narwhal.router.errors import ServeError
from narwhal.router.http import Connection
from narwhal.router.sockets import BACKLOG, Make, Secured, Server, TlsServer, bind_tcp, group_id, inherited, listen_unix
from narwhal.router.tls import Certificate, CertificateError
from narwhal.router.tokens import Tokens

log = logging.getLogger("narwhal.router")


class Listeners:
    """What is open. `clients` and `admin` close apart: operators may look on while requests finish."""

    def __init__(self) -> None:
        self.clients: list[Server] = []
        self.admin: list[Server] = []
        self.tokens: Tokens
        """Of the admin listener over TCP."""

    @property
    def tls(self) -> list[Secured]:
        """Those of them that serve TLS."""
        return [server for server in (*self.clients, *self.admin) if isinstance(server, Secured)]

    def check_certificates(self) -> None:
        """Take up certificates that were replaced."""
        for server in self.tls:
            server.certificate.check()

    def renew(self, expanded: Expanded) -> list[str]:
        """Read tokens and certificates again, from where a changed fleet file says: all of them are taken up, or none.

        Returns what could not be read, in words; the log says it too.
        """
        routers = expanded.fleet.routers
        problems = []
        try:
            known = self.tokens.read(routers.admin.tokens)
        except SecretError as error:
            log.error("%s; the former tokens stay valid", error)
            problems.append(str(error))
        read = []
        for server in self.tls:
            tls = routers.tls if server.name == "clients" else routers.admin.tls
            try:
                read.append((server.certificate, server.certificate.read(tls or server.certificate.now.tls)))
            except CertificateError as error:
                problems.append(str(error))
        if not problems:
            self.tokens.use(known)
            for certificate, loaded in read:
                certificate.use(loaded)
        return problems

    def close_clients(self) -> None:
        """Accept no more clients."""
        _close(self.clients)
        self.clients.clear()

    def close_admin(self) -> None:
        """Accept no more operators."""
        _close(self.admin)


class TlsCollector:
    """What Prometheus reads about TLS."""

    def __init__(self, listeners: Listeners) -> None:
        self._listeners = listeners

    def collect(self) -> Iterable[Any]:
        """All metrics of TLS; see the catalogue."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        done = CounterMetricFamily("narwhal_tls_handshakes", "TLS handshakes, by end.", labels=["listener", "outcome"])
        under_way = GaugeMetricFamily("narwhal_tls_handshakes_open", "Handshakes under way.", labels=["listener"])
        expiry = GaugeMetricFamily(
            "narwhal_tls_certificate_expiry_timestamp_seconds", "When the served one ends.", labels=["listener"]
        )
        reloads = CounterMetricFamily(
            "narwhal_tls_certificate_reloads", "Certificates replaced.", labels=["listener", "outcome"]
        )
        for server in self._listeners.tls:
            for outcome, count in server.handshakes.items():
                done.add_metric([server.name, outcome], count)
            under_way.add_metric([server.name], server.open_handshakes)
            certificate = server.certificate
            expiry.add_metric([server.name], certificate.now.expires.timestamp())
            reloads.add_metric([server.name, "done"], certificate.reloads)
            reloads.add_metric([server.name, "failed"], certificate.failures)
        yield from (done, under_way, expiry, reloads)


async def open_listeners(expanded: Expanded, state_dir: Path, clients: list[Server], admin: Admin) -> Listeners:
    """Open every listener of this router beside those for clients, or none. Raises `ServeError`."""
    router, settings = expanded.routers[0], expanded.fleet.routers.admin
    path = admin_socket(expanded, state_dir)
    opened = Listeners()
    opened.clients += clients
    try:
        opened.tokens = _tokens(settings)
        gid = _group(settings)
        tcp = Door(admin, TcpRule(opened.tokens, loopback=settings.bind == "loopback", unix_path=str(path)))
        where = (router.admin_bind, router.admin_port, settings.tls, "routers.admin")
        opened.admin.append(await open_tcp("admin", *where, tcp))
        try:
            opened.admin.append(await listen_unix(path, gid, _maker(Door(admin, UnixRule(gid)))))
        except OSError as error:
            raise ServeError(f"cannot listen on {path} (routers.admin.socket): {error.strerror}") from None
    except BaseException:
        opened.close_clients()
        opened.close_admin()
        raise
    admin.register(TlsCollector(opened))
    return opened


def _tokens(settings: AdminSettings) -> Tokens:
    try:
        return Tokens(settings.tokens, os.environ)
    except SecretError as error:
        raise ServeError(str(error)) from None


def _group(settings: AdminSettings) -> int | None:
    try:
        return group_id(settings.group)
    except KeyError:
        raise ServeError(f"routers.admin.group: there is no group {settings.group!r} on this host") from None


async def open_tcp(
    name: str, address: str, port: int, tls: Tls | None, key: str, app: App, *, shared: bool = False
) -> Server:
    """Listen on a TCP port. `shared`: beside other processes of ours that do. Raises `ServeError`."""
    certificate = open_certificate(tls, key)
    listener = bind(address, port, key, shared=shared)
    if certificate is not None:
        return TlsServer(listener, certificate, _maker(app), name)
    return await asyncio.get_running_loop().create_server(_maker(app), sock=listener, backlog=BACKLOG)


def open_certificate(tls: Tls | None, key: str) -> Certificate | None:
    """The certificate of a listener, where it has one. Raises `ServeError`."""
    try:
        return None if tls is None else Certificate(tls, f"{key}.tls")
    except CertificateError as error:
        raise ServeError(str(error)) from None


def bind(address: str, port: int, key: str, *, shared: bool) -> socket.socket:
    """A bound socket. Raises `ServeError`."""
    given = inherited() if key == "routers" else None
    if given is not None:
        return given
    try:
        return bind_tcp(address, port, shared=shared)
    except OSError as error:
        raise ServeError(f"cannot listen on {address}:{port} ({key}.port): {error.strerror}") from None


def _maker(app: App) -> Make:
    loop = asyncio.get_running_loop()
    return lambda: Connection(app, loop)


def _close(servers: Iterable[Any]) -> None:
    for server in servers:
        server.close()
