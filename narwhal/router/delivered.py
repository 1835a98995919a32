"""Which tokens a stream has delivered, read from its bytes as they pass: what another engine needs to go on with it.

Engines that are asked for it (`return_token_ids`) put a token's ids into its event, and those of the prompt into the
first one. Nothing is decoded: a quote inside JSON text is escaped, so the names below can stand in it nowhere else.
"""

import re

from narwhal.router.chunks import END_OF_EVENT, ChunkTracker, Dechunker, dechunk
from narwhal.router.continuation import PROMPT_MARKS, Opening, find_prompt_ids, read_opening

_IDS = re.compile(rb'"token_ids": ?\[([0-9, ]+)\]')


class Delivered:
    """The ids of a stream's tokens. Feed it whole chunks, framing included.

    They are kept as the text that they came as, about seven bytes each: most streams end without anyone asking.
    """

    __slots__ = ("_dechunker", "_part", "_text", "opening", "tail")

    def __init__(self, text: bytes = b"", opening: Opening | None = None) -> None:
        """`text`, `opening`: of a stream that goes on here, what was delivered before and how it began."""
        self._text = bytearray(text)
        """The ids, each with a comma after it."""
        self.opening = opening
        """What the first events told; None while there are none, or when the stream cannot go on from them."""
        self.tail = b""
        """The last bytes that passed, once the stream broke."""
        self._dechunker: Dechunker | None = None
        """Set once an event was split over chunks: from there on the framing has to be taken off."""
        self._part = b""
        """The beginning of an event whose end has not come."""

    @property
    def ids(self) -> list[int]:
        """The ids so far."""
        return list(map(int, self._text.split(b",")[:-1]))

    @property
    def text(self) -> bytes:
        """The ids so far as text, each with a comma after it."""
        return bytes(self._text)

    @property
    def size(self) -> int:
        """Bytes that are kept."""
        return len(self._text) + (len(self.opening.prompt_ids) if self.opening is not None else 0)

    @property
    def torn(self) -> bool:
        """Whether the stream stands in the middle of an event."""
        return bool(self._part)

    def begin(self, data: bytes) -> None:
        """The first events are here."""
        self.opening = self.opening or read_opening(data)

    def broke(self, tracker: ChunkTracker) -> None:
        """The stream broke: keep its end."""
        self.tail = tracker.last_bytes

    def feed(self, data: bytes, whole_events: bool) -> None:
        """Take the ids of the next chunks. `whole_events`: no event was split over chunks up to and with these."""
        if self._dechunker is not None or not whole_events:
            data = self._whole_events(data)
        found = _IDS.findall(data)
        if found:
            self._text += b",".join(found) + b","

    def _whole_events(self, data: bytes) -> bytes:
        """The events that the next chunks complete, without framing."""
        self._dechunker = self._dechunker or Dechunker()
        content = self._part + self._dechunker.feed(data)
        end = content.rfind(b"\n\n") + 1
        self._part = content[end:]
        return content[:end]


def without_prompt_ids(data: bytes, *, last: bool) -> bytes:
    """The first chunks of a stream without the prompt's ids, which the client did not ask for.

    `last`: the body's last chunk is among them. What is rewritten becomes one chunk; what follows stays as it is.
    """
    found = max(data.rfind(mark) for mark in PROMPT_MARKS)
    if found < 0:
        return data
    end = data.find(END_OF_EVENT, found)
    if end < 0:
        content = _without_ids(dechunk(data))
        return b"%x\r\n%s\r\n%s" % (len(content), content, b"0\r\n\r\n" if last else b"")
    end += len(END_OF_EVENT)  # a chunk ends there, too
    content = _without_ids(dechunk(data[:end]))
    return b"%x\r\n%s\r\n%s" % (len(content), content, data[end:])


def _without_ids(content: bytes) -> bytes:
    """Events without the prompt's ids; there may be thousands, so they are passed over and not matched."""
    while (found := find_prompt_ids(content)) is not None:
        content = b'%s"prompt_token_ids":null%s' % (content[: found[0]], content[found[2] + 1 :])
    return content
