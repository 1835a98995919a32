"""Which tokens a stream has delivered, read from its bytes as they pass: what another engine needs to go on with it.

Engines that are asked for it (`return_token_ids`) put a token's ids into its event, and those of the prompt into the
first one. Nothing is decoded: a quote inside JSON text is escaped, so the names below can stand in it nowhere else.
"""

import re
from array import array

from narwhal.router.chunks import Dechunker, dechunk

_IDS = re.compile(rb'"token_ids": ?\[([0-9, ]+)\]')
_PROMPT_IDS = re.compile(rb'"prompt_token_ids": ?\[[0-9, ]*\]')
_END_OF_CHUNKED_EVENT = b"\n\n\r\n"


class Delivered:
    """The ids of a stream's tokens, four bytes each. Feed it whole chunks, framing included."""

    __slots__ = ("_chunks", "_dechunker", "_part", "ids")

    def __init__(self) -> None:
        self.ids = array("I")
        self._chunks = 0
        self._dechunker: Dechunker | None = None
        """Set once an event was split over chunks: from there on the framing has to be taken off."""
        self._part = b""
        """The beginning of an event whose end has not come."""

    def feed(self, data: bytes, chunks: int) -> None:
        """Take the ids of the next chunks; with them, `chunks` have come, the last one of the body not counted."""
        if self._dechunker is None:
            new, self._chunks = chunks - self._chunks, chunks
            if data.count(_END_OF_CHUNKED_EVENT) == new:  # whole events alone: framing can stand in none of them
                self._take(data)
                return
            self._dechunker = Dechunker()
        content = self._part + self._dechunker.feed(data)
        end = content.rfind(b"\n\n") + 1
        self._part = content[end:]
        self._take(content[:end])

    def _take(self, events: bytes) -> None:
        for found in _IDS.findall(events):
            self.ids.extend(map(int, found.split(b",")))


def without_prompt_ids(data: bytes, *, last: bool) -> bytes:
    """The first chunks of a stream without the prompt's ids, which the client did not ask for.

    `last`: the body's last chunk is among them. What is rewritten becomes one chunk.
    """
    if _PROMPT_IDS.search(data) is None:
        return data
    content = _PROMPT_IDS.sub(b'"prompt_token_ids":null', dechunk(data))
    return b"%x\r\n%s\r\n%s" % (len(content), content, b"0\r\n\r\n" if last else b"")
