"""Who asks on an admin listener, and whether they may: bearer tokens over TCP, the kernel's word on the Unix socket."""

import os
from collections.abc import Callable
from dataclasses import dataclass

from narwhal.fleet.model import Scope
from narwhal.router.http import Connection
from narwhal.router.incoming import Incoming
from narwhal.router.live import PATHS
from narwhal.router.replies import error_body
from narwhal.router.sockets import peer
from narwhal.router.tokens import GRANTS, Caller, Tokens

OPEN = ("/health", "/ready", *PATHS)
"""Routes that ask for no token, and tell nothing of the fleet: load balancers and systemd look at the first two, a
browser takes the others before anybody can give it a token."""
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_REALM = b'Bearer realm="narwhal"'


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not served."""

    status: int
    message: str
    challenge: bytes = b""
    """The `WWW-Authenticate` header; empty: none."""

    def answer(self, connection: Connection) -> None:
        """Send it."""
        headers = b"www-authenticate: %s\r\n" % self.challenge if self.challenge else b""
        connection.respond(self.status, error_body(self.status, self.message), headers=headers)


Rule = Callable[[Connection, Incoming], Caller | Refusal]


def cross_site(request: Incoming) -> Refusal | None:
    """A browser names the page that sends a form or a script's POST; no page has anything to order here."""
    if request.method not in ("GET", "HEAD") and b"origin" in request.headers:
        return Refusal(403, "a page in a browser may not give orders")
    return None


def lacking(caller: Caller, scope: Scope) -> Refusal | None:
    """Whether a caller may not do what needs this scope."""
    if scope in caller.grants:
        return None
    challenge = b'%s, error="insufficient_scope", scope="%s"' % (_REALM, scope.encode())
    return Refusal(403, f"{caller.name} may not do this: it needs the scope {scope!r}", challenge)


class TcpRule:
    """Over TCP: a bearer token; without any declared, whoever reaches loopback may read."""

    def __init__(self, tokens: Tokens, *, loopback: bool, unix_path: str) -> None:
        self._tokens = tokens
        self._loopback = loopback
        self._unix_path = unix_path

    def __call__(self, connection: Connection, request: Incoming) -> Caller | Refusal:
        """Who asks."""
        if self._loopback and not is_loopback(request.headers.get(b"host", b"").decode("latin1")):
            return Refusal(403, "the Host header is not a loopback name")  # a page whose name was bound to loopback
        if request.path in OPEN:
            return Caller("anyone", GRANTS["read"])
        if not self._tokens:
            return self._without_tokens(request)
        scheme, _, token = request.headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer" or not token:
            return Refusal(401, "a bearer token is needed (routers.admin.tokens)", _REALM)
        caller = self._tokens.caller(token.strip())
        return caller or Refusal(401, "the bearer token is not known here", _REALM + b', error="invalid_token"')

    def _without_tokens(self, request: Incoming) -> Caller | Refusal:
        if self._loopback and request.method in ("GET", "HEAD"):
            return Caller("anyone on loopback", GRANTS["read"])
        text = "over TCP this needs a token, and the fleet file declares none (routers.admin.tokens)"
        return Refusal(403, f"{text}; use the Unix socket {self._unix_path}")


class UnixRule:
    """On the Unix socket: root, the router's own user, and the members of a group, by the kernel's word."""

    def __init__(self, gid: int | None) -> None:
        self._gid = gid

    def __call__(self, connection: Connection, request: Incoming) -> Caller | Refusal:
        """Who asks."""
        uid, groups = peer(connection.transport.get_extra_info("socket"))
        if uid in (0, os.geteuid()) or self._gid in groups:
            return Caller(f"user {uid}", GRANTS["operate"] | GRANTS["replicate"])
        text = f"user {uid} may not use this socket: it is for root, user {os.geteuid()}"
        return Refusal(403, text + (" and the group routers.admin.group" if self._gid is not None else ""))


def is_loopback(host: str) -> bool:
    """Whether a Host header names loopback."""
    name, _, port = host.partition("]:") if host.startswith("[") else host.partition(":")
    return name.strip("[]") in _LOOPBACK and (not port or port.isdigit())
