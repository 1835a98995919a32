"""Reaching the other router's admin listener: by its Unix socket on one host, else over TCP with a token."""

import contextlib
import http.client
import os
import ssl
from pathlib import Path

from narwhal.fleet.expanded import Expanded, RouterSpec
from narwhal.fleet.places import admin_socket
from narwhal.fleet.secrets import SecretError, read_secret
from narwhal.fleet.unix import UnixConnection
from narwhal.router.standby.follower import SILENCE_S, Connect


def connect_to(expanded: Expanded, peer: RouterSpec, state_dir: Path) -> Connect:
    """How the other router is reached. What is missing, such as a token, is said when it is first asked."""
    if expanded.on_one_host:
        path = admin_socket(expanded.of_router(standby=peer.standby), state_dir)
        return lambda: (UnixConnection(path, SILENCE_S), {})

    def connect() -> tuple[http.client.HTTPConnection, dict[str, str]]:
        headers = {"Authorization": f"Bearer {_token(expanded)}"}
        tls = expanded.fleet.routers.admin.tls
        if tls is None:
            return http.client.HTTPConnection(peer.address, peer.admin_port, timeout=SILENCE_S), headers
        context = ssl.create_default_context()
        with contextlib.suppress(OSError):  # where one certificate, or one authority's chain, serves both routers
            context.load_verify_locations(tls.cert)
        secure = http.client.HTTPSConnection(peer.address, peer.admin_port, timeout=SILENCE_S, context=context)
        return secure, headers

    return connect


def _token(expanded: Expanded) -> str:
    """The first token that may follow. Raises `ValueError` where there is none, or it cannot be read."""
    for token in expanded.fleet.routers.admin.tokens:
        if token.scope == "replicate":
            try:
                return read_secret(token.token, f"the token {token.name!r} of routers.admin.tokens", os.environ)
            except SecretError as error:
                raise ValueError(str(error)) from None
    raise ValueError("routers.admin.tokens has none of scope `replicate`")
