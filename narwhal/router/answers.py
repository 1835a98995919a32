"""What the head of an engine's answer says of its body: how long it is, and whether the connection closes after it."""

import re
from functools import lru_cache

STATUS_LINE = len(b"http/1.1 200 ")
"""Bytes of a head that tell its status."""
_FRAMING = re.compile(rb"\r\n(content-length|transfer-encoding|connection):[ \t]*([^\r\n]*)")


@lru_cache(256)
def status_line(line: bytes) -> tuple[int, bool]:
    """The status that a lower-case head begins with, and whether HTTP/1.1 is spoken. Raises `ValueError`."""
    found = re.match(rb"http/1\.([01]) ([1-9][0-9][0-9])[ \r]", line)
    if found is None:
        raise ValueError("no status line")
    return int(found[2]), found[1] == b"1"


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
