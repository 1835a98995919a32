"""One request as a listener hands it on, who serves it, and the head of one that need not be read again."""

import re
from typing import Protocol

import msgspec

_LENGTH = re.compile(rb"\r\n[Cc]ontent-[Ll]ength:[ \t]*([0-9]{1,9})\r\n")
_DIGITS = 9


class Incoming(msgspec.Struct):
    """One request, whole."""

    method: str
    path: str
    query: str
    headers: dict[bytes, bytes]
    """By lower-case name; of a repeated one the last."""
    body: bytes
    keep_alive: bool
    http10: bool
    arrived_t: float
    """When its first byte came, on the loop's clock."""


class Serving(Protocol):
    """What a connection tells whoever answers its request."""

    def client_gone(self) -> None:
        """The client closed the connection."""

    def client_slow(self, slow: bool) -> None:
        """The client reads too slowly (True), or again (False)."""


class KnownHead(msgspec.Struct, frozen=True):
    """A head that was read, checked and let in. Clients on a kept connection repeat theirs, all but the body's length.

    One that differs in the digits of its `content-length` alone means the same, and is let in without being read:
    this saves a seventh of what a small request costs the router.
    """

    before: bytes
    """All that stands before those digits."""
    after: bytes
    """All that stands behind them, the end of the head included."""
    method: str
    path: str
    query: str
    headers: dict[bytes, bytes]

    @classmethod
    def of(cls, data: bytes, request: Incoming) -> "KnownHead | None":
        """The head of a request that made up a whole read; None where it did not, or the next may not be like it."""
        end = data.find(b"\r\n\r\n") + 4
        headers = request.headers
        if request.method != "POST" or not request.keep_alive or end + len(request.body) != len(data):
            return None
        if b"transfer-encoding" in headers or b"expect" in headers:
            return None
        found = _LENGTH.search(data, 0, end)
        if found is None:
            return None
        before, after = data[: found.start(1)], data[found.end(1) : end]
        return cls(before, after, request.method, request.path, request.query, headers)

    def again(self, data: bytes, most: int, t: float) -> Incoming | None:
        """The request of a read that has this head and then a whole body of at most `most` bytes; None: read it."""
        if not data.startswith(self.before):
            return None
        begin = len(self.before)
        end = data.find(b"\r", begin, begin + _DIGITS + 1)
        digits, body = data[begin:end], data[end + len(self.after) :]
        if not digits.isdigit() or not data.startswith(self.after, end) or not len(body) == int(digits) <= most:
            return None
        headers = self.headers
        headers[b"content-length"] = digits
        return Incoming(self.method, self.path, self.query, headers, body, True, False, t)
