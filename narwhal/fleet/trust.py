"""How engines that are reached by https are known."""

import ssl

from narwhal.fleet.model import EngineTls

ALPN = ["http/1.1"]
"""HTTP/2 is a front proxy's."""


class TrustError(Exception):
    """An authority cannot be used; the message names its key and its file."""


def engine_context(tls: EngineTls | None) -> ssl.SSLContext:
    """How engines are verified: by their own authority, or the system's. Raises `TrustError`."""
    ca = None if tls is None else tls.ca
    try:
        context = ssl.create_default_context(cafile=ca)
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise TrustError(f"engines.tls.ca: cannot use {ca} as a certificate authority: {said}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(ALPN)
    return context
