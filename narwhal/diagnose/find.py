"""Finding the router: `--router URL`, else `--fleet FILE`, else `NARWHAL_ROUTER`, else the dev instance.

On the router's own host its Unix socket comes first, which asks for no token.
"""

import socket
from collections.abc import Iterable, Mapping
from pathlib import Path

from narwhal.diagnose.client import AdminClient, RefusedError, UnreachableError
from narwhal.fleet import Expanded, open_fleet
from narwhal.fleet.expand import base_url
from narwhal.fleet.model import SecretFromFile
from narwhal.fleet.places import admin_socket, admin_sockets, reachable
from narwhal.fleet.secrets import SecretError, read_secret

TOKEN_VARIABLE = "NARWHAL_ADMIN_TOKEN"  # noqa: S105 - the name of a variable


class NoRouterError(Exception):
    """No rule names a router; the message says what to give."""


class NoTokenError(Exception):
    """The router wants a token, and none can be read; the message says which, and why not."""


def find_router(
    *,
    router: str | None,
    fleet: Path | None,
    environ: Mapping[str, str],
    dev_fleet: Path | None,
    token_file: Path | None = None,
) -> AdminClient:
    """The client for the router that is meant; whether it answers is seen at the first question.

    Over TCP the token is that of `token_file`, of
    `NARWHAL_ADMIN_TOKEN`, or of the fleet file's `routers.admin.tokens`, the one that may do most first.
    Raises `NoRouterError`, `NoTokenError`, and what `open_fleet` raises.
    """
    url = router or (None if fleet else environ.get("NARWHAL_ROUTER"))
    if url:
        return AdminClient(url, token=_given_token(token_file, environ))
    path = fleet or dev_fleet
    if path is None:
        raise NoRouterError(
            "no router is named: give --router URL or --fleet FILE, or set NARWHAL_ROUTER; there is no dev instance"
        )
    expanded = open_fleet(path)
    here = [] if token_file else [client for each in _routers(expanded) if (client := _beside(each, path, environ))]
    if here:
        return next((client for client in here if len(here) > 1 and _leads(client)), here[0])
    admin, spec = expanded.fleet.routers.admin, expanded.routers[0]
    address = "127.0.0.1" if spec.admin_bind == "0.0.0.0" else spec.admin_bind  # noqa: S104
    token = _given_token(token_file, environ) or _declared_token(expanded, environ)
    return AdminClient(base_url(address, spec.admin_port, tls=admin.tls is not None), token=token)


def _routers(expanded: Expanded) -> list[Expanded]:
    """The fleet as each of its routers sees it that may be on this host."""
    both = expanded.on_one_host
    return [expanded, expanded.of_router(standby=True)] if both else [expanded]


def _beside(expanded: Expanded, path: Path, environ: Mapping[str, str]) -> AdminClient | None:
    """The router whose Unix socket somebody listens on; that of a dev instance is beside its fleet file."""
    found = _listening([admin_socket(expanded, path.parent / "state"), *admin_sockets(expanded, environ)])
    return None if found is None else AdminClient(f"unix:{found}")


def _leads(client: AdminClient) -> bool:
    try:
        return bool((client.state().get("lease") or {}).get("standing") == "leader")
    except (UnreachableError, RefusedError):
        return False


def _listening(paths: Iterable[Path]) -> Path | None:
    """The first of the sockets that somebody listens on and this user may open."""
    for path in paths:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                with reachable(path) as name:
                    probe.connect(name)
            except OSError:
                continue
            return path
    return None


def _given_token(token_file: Path | None, environ: Mapping[str, str]) -> str:
    if token_file is None:
        return environ.get(TOKEN_VARIABLE, "")
    try:
        return read_secret(SecretFromFile(file=str(token_file)), "--token-file", environ)
    except SecretError as error:
        raise NoTokenError(str(error)) from None


def _declared_token(expanded: Expanded, environ: Mapping[str, str]) -> str:
    declared = sorted(expanded.fleet.routers.admin.tokens, key=lambda token: token.scope != "operate")
    reason: SecretError | None = None
    for token in declared:
        try:
            return read_secret(token.token, f"the token {token.name!r} of routers.admin.tokens", environ)
        except SecretError as error:
            reason = reason or error
    if reason is not None:
        raise NoTokenError(str(reason))
    return ""
