"""What httptools lets pass of a request's head and must not pass: read in two ways, it would be two requests."""

import re

METHODS = frozenset([b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS", b"TRACE"])
"""llhttp knows more, of RTSP and of WebDAV."""
ONCE = frozenset([b"content-length", b"transfer-encoding", b"host", b"content-type", b"authorization", b"expect"])
"""Headers that two readers might take from two places."""
_CR, _LF, _NUL = b"\r\n\0"
_HOST = re.compile(rb"[^\x00-\x20\x7f\"#,/<>?@\\^`{|}]*")
_ABSOLUTE = re.compile(rb"https?://[^/?#]*", re.IGNORECASE)


class BadRequestError(Exception):
    """A request that is refused while it is read: status, what is wrong, code, and lines for the answer's head."""

    def __init__(self, status: int, message: str, *, code: str | None = None, headers: bytes = b"") -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.headers = status, message, code, headers


def check_head(method: bytes, version: str, headers: dict[bytes, bytes], max_body: int) -> int:
    """Refuse what can be refused before the body; returns the body's length, -1 when it comes in chunks.

    `version` is `1.1`, or what stands there instead.
    """
    if version not in ("1.0", "1.1"):
        raise BadRequestError(505, f"HTTP/{version} is not served")
    if method not in METHODS:
        raise BadRequestError(501, "this method is not served")
    values = b"".join(headers.values())
    if _CR in values or _LF in values or _NUL in values:
        raise BadRequestError(400, "a header value holds a control character")
    host = headers.get(b"host")
    if host is None and version == "1.1":
        raise BadRequestError(400, "the Host header is missing")
    if host is not None and _HOST.fullmatch(host.strip()) is None:
        raise BadRequestError(400, "the Host header names no host")
    encoding = headers.get(b"transfer-encoding")
    if encoding is not None and (
        b"content-length" in headers or encoding.strip().lower() != b"chunked" or version == "1.0"
    ):
        raise BadRequestError(400, "Transfer-Encoding other than chunked, together with Content-Length, or in HTTP/1.0")
    length = int(headers.get(b"content-length", b"0"))
    if length > max_body:
        raise BadRequestError(413, f"the body is longer than {max_body} bytes")
    if b"expect" in headers and headers[b"expect"].strip().lower() != b"100-continue":
        raise BadRequestError(417, "only `Expect: 100-continue` is served")
    return length if encoding is None else -1


def split_target(url: bytes) -> tuple[str, str]:
    """Path and query of a request's target, which a proxy's client may have sent with its host."""
    absolute = None if url.startswith(b"/") else _ABSOLUTE.match(url)
    if absolute is not None:
        url = url[absolute.end() :]
        url = url if url.startswith(b"/") else b"/" + url
    path, _, query = url.decode("latin1").partition("?")
    return path, query
