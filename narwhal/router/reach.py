"""How the router reaches engines: where each listens, the key it asks for, and how its certificate is verified."""

import asyncio
import os
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from narwhal.fleet.model import Fleet
from narwhal.fleet.secrets import SecretError, read_secret
from narwhal.fleet.trust import TrustError, engine_context
from narwhal.router.errors import ServeError
from narwhal.router.upstream import Pool


@dataclass(frozen=True, slots=True, repr=False)
class Reach:
    """What all engines of a fleet are reached with."""

    api_key: str
    context: ssl.SSLContext | None
    """None: no engine is reached over TLS."""
    server_name: str | None

    def pool(self, loop: asyncio.AbstractEventLoop, url: str) -> Pool:
        """Connections to the engine at an address."""
        parts = urlsplit(url)
        host = parts.hostname or "127.0.0.1"
        secure = (self.context, self.server_name or host) if self.context and parts.scheme == "https" else None
        return Pool(loop, host, parts.port or (443 if secure else 80), api_key=self.api_key, secure=secure)


def engine_reach(fleet: Fleet, urls: Iterable[str]) -> Reach:
    """How engines at these addresses are reached. Raises `ServeError`."""
    engines = fleet.engines
    any_tls = any(url.startswith("https:") for url in urls)
    name = engines.tls.server_name if engines.tls else None
    try:
        key = read_secret(engines.api_key, "engines.api_key", os.environ) if engines.api_key else ""
        return Reach(key, engine_context(engines.tls) if any_tls else None, name)
    except (SecretError, TrustError) as error:
        raise ServeError(str(error)) from None
