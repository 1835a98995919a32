"""A client connection without a socket: the test plays the loop's clock, the transport and the app."""

from typing import Any

from narwhal.router.http import Connection
from narwhal.router.incoming import Incoming


class Clock:
    """As much of an event loop as a connection uses."""

    def __init__(self) -> None:
        self.now = 100.0
        self.later: list[Any] = []
        self.waits: list[float] = []

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, action: Any) -> None:
        self.waits.append(seconds)
        self.later.append(action)


class Transport:
    """Remembers what is written, and whether it was closed."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = False
        self.ended = False
        self.cut = False
        self.reading = True
        self.unsent = 0

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def is_closing(self) -> bool:
        return self.closed

    def abort(self) -> None:
        self.closed = self.cut = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def get_write_buffer_size(self) -> int:
        return self.unsent


class App:
    """Answers at once, or not at all."""

    max_body = 100_000
    max_head = 1_000
    max_buffered = 150_000

    def __init__(self) -> None:
        self.connections: set[Connection] = set()
        self.answers = True
        self.buffered = 0
        self.codes: list[str] = []

    def judge(self, connection: Connection, method: bytes, path: str, headers: dict[bytes, bytes], length: int) -> int:
        """Lets every body come."""
        return 0

    def refused(self, code: str) -> None:
        self.codes.append(code)

    def handle(self, connection: Connection, request: Incoming) -> None:
        if self.answers:
            connection.respond(200, b"{}")
