"""The files of the live page, as they stand in the package. They tell nothing of the fleet, so they need no token."""

import functools
from pathlib import Path

from narwhal.router.http import Connection
from narwhal.router.incoming import Incoming

_FILES = {
    "/": ("page.html", b"text/html; charset=utf-8"),
    "/page.css": ("page.css", b"text/css; charset=utf-8"),
    "/page.js": ("page.js", b"text/javascript; charset=utf-8"),
    "/draw.js": ("draw.js", b"text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", b"image/svg+xml"),
}
PATHS = tuple(_FILES)
"""Where they are served."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Its Content-Security-Policy: nothing but these files and this listener, and no text ever becomes markup."""
_HEADERS = (
    b"content-security-policy: %s\r\nx-content-type-options: nosniff\r\nreferrer-policy: no-referrer\r\n"
    b"cross-origin-opener-policy: same-origin\r\ncross-origin-resource-policy: same-origin\r\n"
    b"cache-control: no-cache\r\n" % POLICY.encode()
)


@functools.cache
def _text(name: str) -> bytes:
    return Path(__file__).with_name(name).read_bytes()


def serve_file(connection: Connection, request: Incoming) -> None:
    """Answer with the file of a path of `PATHS`."""
    name, kind = _FILES[request.path]
    connection.respond(200, _text(name), kind=kind, headers=_HEADERS)
