"""Where one chunk ends and the next begins, in a chunked answer that is relayed as it comes."""

import re

LINE = 1024
"""Longest size line in bytes, extensions included; a longer one is no chunked body."""
MAX_CHUNK = 8 << 20
"""Largest chunk of a stream, in bytes: it is held until it is whole."""
MAX_TRAILERS = 65536
TAIL = 4096
"""Most bytes of a read that are kept to look for the usage in."""
_USAGE = b'"usage":{'
END_OF_EVENT = b"\n\n\r\n"
"""How a chunk ends that holds whole events."""
_DONE = b"data: [DONE]\n\n\r\n"
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,16})(?:[ \t]*;[\t\x20-\x7e\x80-\xff]*)?[ \t]*")
_TRAILERS = re.compile(rb"(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*\r\n)*")
"""Both are relayed as they are, so a client's reader must understand them."""


class ChunkError(Exception):
    """The engine's answer is not a chunked body."""


class ChunkTracker:
    """Follows a chunked body read by read and lets whole chunks pass, framing included.

    Any split of the bytes passes the same bytes in the end. A chunk that has not come whole is held, so what has
    passed always ends at a chunk boundary, where an error event may follow. Nothing is decoded.
    """

    __slots__ = ("_missing", "done", "frames", "held", "surplus", "tail", "whole_events")

    def __init__(self) -> None:
        self.held: list[bytes] = []
        """The beginning of a chunk that has not come whole."""
        self._missing = 0
        """Bytes without which it cannot be whole."""
        self.done = False
        """The last chunk and its trailers are here."""
        self.surplus = False
        """Bytes came after the end."""
        self.whole_events = True
        """No event was split over chunks so far."""
        self.frames = 0
        """`data:` markers so far: frames, not tokens; the usage frame tells tokens."""
        self.tail = (b"", b"", b"")
        """The ends of what passed last: usage, `[DONE]` and the last chunk come in three reads at the most."""

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes; returns the whole chunks that they complete. Raises `ChunkError`."""
        if self.held:
            self.held.append(data)
            self._missing -= len(data)
            if self._missing > 0:
                return b""
            data = b"".join(self.held)
            self.held = []
        end = self._last_boundary(data)
        if end != len(data):
            if self.done:
                self.surplus = True
            else:
                self.held.append(data[end:])
            data = data[:end]
        if data:
            _, before, last = self.tail
            self.tail = (before, last, data if len(data) <= TAIL else data[-TAIL:])
            self.frames += data.count(b"data: ")
        return data

    @property
    def usage(self) -> bytes:
        """What follows the last `"usage":` of the stream's end; empty when there is none."""
        tail = b"".join(self.tail)
        start = tail.rfind(_USAGE)
        return tail[start : start + 512] if start >= 0 else b""

    @property
    def last_bytes(self) -> bytes:
        """The last bytes that passed, without a gap; they may begin amid an event."""
        before_that, before, last = self.tail
        if len(last) >= TAIL:
            return last
        return before + last if len(before) >= TAIL else before_that + before + last

    @property
    def said_done(self) -> bool:
        """Whether `[DONE]` has passed, though perhaps not the last chunk: the content is complete."""
        return self.tail[2].endswith(_DONE)

    def _last_boundary(self, data: bytes) -> int:
        """Where the last whole chunk of `data` ends; says in `_missing` what the next one lacks at least."""
        position, size = 0, len(data)
        while position < size:
            step = STEPS.get(data[position : position + KEY])
            if step is None:
                line_end = data.find(b"\r\n", position, position + LINE)
                if line_end < 0:
                    if size - position >= LINE:
                        raise ChunkError("a chunk's size line is too long")
                    self._missing = 1
                    return position
                length = _length(data[position:line_end])
                if length == 0:
                    return self._end(data, position, line_end)
                step = line_end + 2 + length + 2 - position
                _remember(data[position : position + KEY], step)
            end = position + step
            if end > size:
                self._missing = end - size
                return position
            if data[end - 4 : end] != END_OF_EVENT:
                if data[end - 2 : end] != b"\r\n":
                    raise ChunkError("a chunk is longer than its size says")
                self.whole_events = False
            position = end
        return position

    def _end(self, data: bytes, position: int, line_end: int) -> int:
        """The last chunk begins at `position`: it is whole when the empty line after its trailers is there."""
        stop = data.find(b"\r\n\r\n", line_end)
        if stop < 0:
            if len(data) - position > MAX_TRAILERS:
                raise ChunkError("trailers are too long")
            self._missing = 1
            return position
        if _TRAILERS.fullmatch(data, line_end + 2, stop + 2) is None:
            raise ChunkError("trailers are malformed")
        self.done = True
        return stop + 4


KEY = 5
"""Bytes that tell a chunk's size where it has one to three digits: with the CRLF after them, and perhaps more."""
STEPS: dict[bytes, int] = {}
"""From the first bytes of a chunk to the whole of it, size line and last CRLF included."""


def _remember(start: bytes, step: int) -> None:
    """The sizes of an engine's chunks are few: reading each again would be half of what a burst costs."""
    if b"\r\n" in start:
        if len(STEPS) >= 4096:
            STEPS.clear()
        STEPS[start] = step


def _length(line: bytes) -> int:
    """The size in a size line, in bytes. Raises `ChunkError`."""
    found = _SIZE.fullmatch(line)
    length = int(found.group(1), 16) if found is not None else MAX_CHUNK + 1
    if length <= MAX_CHUNK:
        return length
    raise ChunkError(f"not a chunk size, or too large: {line[:32]!r}")


class Dechunker:
    """Takes the framing off a chunked body read by read. Feed it what a `ChunkTracker` let pass."""

    __slots__ = ("_left", "_part", "done")

    def __init__(self) -> None:
        self._part = b""
        self._left = 0
        """Bytes of the present chunk that have not come, its final CRLF included."""
        self.done = False

    def feed(self, data: bytes) -> bytes:
        """The content of the next bytes. Raises `ChunkError`."""
        data = self._part + data if self._part else data
        self._part = b""
        out, position, size = [], 0, len(data)
        while position < size and not self.done:
            if self._left > 2:
                piece = data[position : position + self._left - 2]
                out.append(piece)
                position += len(piece)
                self._left -= len(piece)
            elif self._left:
                skipped = min(self._left, size - position)
                position += skipped
                self._left -= skipped
            else:
                end = data.find(b"\r\n", position)
                if end < 0:
                    self._part = data[position:]
                    break
                length = _length(data[position:end])
                self.done = length == 0  # what follows are trailers
                self._left = length + 2
                position = end + 2
        return b"".join(out)


def dechunk(body: bytes) -> bytes:
    """A complete chunked body without its framing."""
    return Dechunker().feed(body)
