"""Finding the router: `--router URL`, else `--fleet FILE`, else `NARWHAL_ROUTER`, else the dev instance."""

from collections.abc import Mapping
from pathlib import Path

from narwhal.diagnose.client import AdminClient
from narwhal.fleet import open_fleet
from narwhal.fleet.expand import base_url
from narwhal.fleet.model import Secret, SecretFromEnv

TOKEN_VARIABLE = "NARWHAL_ADMIN_TOKEN"  # noqa: S105 - the name of a variable


class NoRouterError(Exception):
    """No rule names a router; the message says what to give."""


def find_router(
    *, router: str | None, fleet: Path | None, environ: Mapping[str, str], dev_fleet: Path | None
) -> AdminClient:
    """The client for the router that is meant; whether it answers is seen at the first question.

    A URL takes its token from `NARWHAL_ADMIN_TOKEN`, a fleet file from where its `routers.admin.token` says.
    Raises `NoRouterError`, and what `open_fleet` raises.
    """
    url = router or (None if fleet else environ.get("NARWHAL_ROUTER"))
    if url:
        return AdminClient(url, token=environ.get(TOKEN_VARIABLE, ""))
    path = fleet or dev_fleet
    if path is None:
        raise NoRouterError(
            "no router is named: give --router URL or --fleet FILE, or set NARWHAL_ROUTER; there is no dev instance"
        )
    expanded = open_fleet(path)
    admin = expanded.fleet.routers.admin
    spec = expanded.routers[0]
    address = "127.0.0.1" if spec.admin_bind == "0.0.0.0" else spec.admin_bind  # noqa: S104
    plain = base_url(address, spec.admin_port)
    return AdminClient(
        plain.replace("http://", "https://", 1) if admin.tls else plain, token=_secret(admin.token, environ)
    )


def _secret(secret: Secret | None, environ: Mapping[str, str]) -> str:
    if secret is None:
        return ""
    if isinstance(secret, SecretFromEnv):
        if secret.env not in environ:
            raise NoRouterError(f"routers.admin.token is read from ${secret.env}, which is not set")
        return environ[secret.env]
    try:
        return Path(secret.file).read_text().removesuffix("\n")
    except OSError as error:
        raise NoRouterError(f"routers.admin.token: cannot read {secret.file}: {error.strerror}") from error
