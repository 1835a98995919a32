"""What the head of an engine's answer says of its body: how long it is, and whether the connection closes after it."""

import re
from functools import lru_cache

SHORT = 1024
"""Longest head that is remembered, in bytes."""
_STATUS = re.compile(rb"http/1\.([01]) ([1-9][0-9][0-9])[ \r]")
_FRAMING = re.compile(rb"\r\n(content-length|transfer-encoding|connection):[ \t]*([^\r\n]*)")


def read_head(head: bytes) -> tuple[int, int, bool]:
    """Status, length of the body and whether the connection stays, by a head with its last header's CRLF.

    The length is in bytes, -1 for chunked, -2 for until the end. Raises `ValueError`.
    """
    # an engine's heads differ by length and second alone: most have just been read
    return _read_short(head) if len(head) <= SHORT else _read(head)


def _read(head: bytes) -> tuple[int, int, bool]:
    head = head.lower()
    found = _STATUS.match(head)
    if found is None:
        raise ValueError("no status line")
    status = int(found[2])
    length, close = framing(head, status)
    return status, length, found[1] == b"1" and not close


_read_short = lru_cache(256)(_read)


def framing(head: bytes, status: int) -> tuple[int, bool]:
    """Length of the body by its lower-case head, and whether the connection closes after it. Raises `ValueError`.

    The length is in bytes, -1 for chunked, -2 for until the end.
    """
    length, close = -2, False
    for name, value in _FRAMING.findall(head):
        value = value.rstrip()
        if name == b"connection":
            close = close or value == b"close"
        elif name == b"transfer-encoding":
            if value != b"chunked":
                raise ValueError("a transfer coding that was not asked for")
            length = -1
        elif not value.isdigit():
            raise ValueError("not a length")
        elif length != -1:
            length = int(value)
    return (0 if status in (204, 304) else length), close
