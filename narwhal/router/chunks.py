"""Where one chunk ends and the next begins, in a chunked answer that is relayed as it comes."""

LINE = 1024
"""Longest size line, extensions included; a longer one is no chunked body."""


class ChunkError(Exception):
    """The engine's answer is not a chunked body."""


class ChunkTracker:
    """Follows a chunked body read by read; any split of the bytes gives the same result.

    `feed` counts server-sent events on the way and remembers what the first of them looked like, without decoding.
    """

    __slots__ = ("_part", "_skip", "done", "frames", "tail")

    def __init__(self) -> None:
        self._part = b""
        self._skip = 0
        """Bytes of the present chunk (its final CRLF included) that have not come yet."""
        self.done = False
        """The last chunk and its trailers are here."""
        self.frames = 0
        """`data:` markers seen whole inside one read: frames, not tokens; the usage frame tells tokens."""
        self.tail = b""
        """The last bytes of the body: enough for the last frames."""

    @property
    def at_boundary(self) -> bool:
        """Whether an own chunk may be written here without breaking the body."""
        return self._skip == 0 and not self._part

    def feed(self, data: bytes) -> int:
        """Take the next bytes; returns how many of them belong to the body. Raises `ChunkError`."""
        self.frames += data.count(b"data: ")
        self.tail = data if len(data) >= 4096 else (self.tail + data)[-4096:]
        held = len(self._part)
        if held:
            data = self._part + data
            self._part = b""
        position, size = self._skip, len(data)
        self._skip = 0
        while position < size:
            end = data.find(b"\r\n", position, position + LINE)
            if end < 0:
                if size - position > LINE:
                    raise ChunkError("a chunk's size line is too long")
                self._part = data[position:]
                return size - held
            length = _length(data[position:end])
            if length == 0:
                return self._last(data, position, end) - held
            position = end + 2 + length + 2
        self._skip = position - size
        return size - held

    def _last(self, data: bytes, position: int, end: int) -> int:
        """The last chunk: wait for the empty line after its trailers. Returns where the body ends in `data`."""
        stop = data.find(b"\r\n\r\n", end)
        if stop < 0:
            if len(data) - position > 65536:
                raise ChunkError("trailers are too long")
            self._part = data[position:]
            return len(data)
        self.done = True
        return stop + 4


def _length(line: bytes) -> int:
    digits = line.partition(b";")[0].strip()
    if not digits or not all(byte in b"0123456789abcdefABCDEF" for byte in digits):
        raise ChunkError(f"not a chunk size: {line[:32]!r}")
    return int(digits, 16)


class Dechunker:
    """Takes the framing off a chunked body read by read, for a client that cannot read chunks."""

    __slots__ = ("_left", "_part")

    def __init__(self) -> None:
        self._part = b""
        self._left = 0
        """Bytes of the present chunk that have not come; -1, -2: parts of its final CRLF."""

    def feed(self, data: bytes) -> bytes:
        """The content of the next bytes."""
        data = self._part + data if self._part else data
        self._part = b""
        out, position, size = [], 0, len(data)
        while position < size:
            if self._left > 0:
                piece = data[position : position + self._left]
                out.append(piece)
                position += len(piece)
                self._left -= len(piece)
                if self._left == 0:
                    self._left = -2
            elif self._left < 0:
                self._left += 1
                position += 1
            else:
                end = data.find(b"\r\n", position)
                if end < 0:
                    self._part = data[position:]
                    break
                self._left = _length(data[position:end]) if end > position else 0
                position = end + 2
        return b"".join(out)
