"""The leading router's end of the follow stream: a line a second to whoever follows, made off the loop."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

import narwhal
from narwhal.control.snapshot import Cut
from narwhal.router.http import Connection
from narwhal.router.incoming import Incoming
from narwhal.router.replies import error_body
from narwhal.router.standby.line import FollowLine, pieces

if TYPE_CHECKING:
    from narwhal.router.shell import Shell

log = logging.getLogger("narwhal.router")
LINE_S = 1.0
"""Time between two lines, in seconds."""
PAUSE_S = 0.002
"""Between two pieces of work on one line, so that the loop gets the interpreter."""
MOST = 4
"""Followers at a time."""
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n"


class _Follower:
    """One that follows, as `Connection` knows who serves it."""

    def __init__(self, feed: "Feed", connection: Connection) -> None:
        self.connection = connection
        self.sent: dict[str, bytes] = {}
        """The pieces as they were sent last."""
        self._feed = feed

    def client_gone(self) -> None:
        self._feed.followers.discard(self)

    def client_slow(self, slow: bool) -> None:
        """Lines are left out meanwhile: the next holds what has changed since the last one that was sent."""


class Feed:
    """Serves `/narwhal/follow`."""

    def __init__(self, shell: "Shell", leads: Callable[[], bool]) -> None:
        self.followers: set[_Follower] = set()
        self.line_bytes = 0
        """Size of the last whole line."""
        self._shell = shell
        self._leads = leads
        self._busy = False
        self._failed = False
        """Whether a line could not be made; said once."""
        self._tasks: set[asyncio.Task[None]] = set()

    def serve(self, connection: Connection, request: Incoming) -> None:
        """Begin a stream."""
        if request.http10 or request.method == "HEAD":
            connection.respond(400, error_body(400, "a stream needs GET and HTTP/1.1"))
            return
        if not self._leads():
            connection.respond(503, error_body(503, "this router does not lead: it knows nothing to follow"))
            return
        if len(self.followers) >= MOST:
            connection.respond(503, error_body(503, f"{MOST} follow already"))
            return
        follower = _Follower(self, connection)
        connection.serving = follower
        connection.transport.write(_HEAD)
        self.followers.add(follower)
        self.tick()

    def tick(self) -> None:
        """Send a line to whoever follows and reads; one at a time is made."""
        if self.followers and not self._busy:
            self._busy = True
            task = self._shell.loop.create_task(self._send())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def flush(self) -> None:
        """Send a last line to whoever follows, such as before another leads."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.tick()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _send(self) -> None:
        shell = self._shell
        try:
            cut, now_t, tokens_per_byte = Cut(shell.control, residents=False), shell.now(), shell.tokens_per_byte
            made = await asyncio.to_thread(pieces, cut, lambda: time.sleep(PAUSE_S))
            for follower in list(self.followers):
                connection = follower.connection
                if connection.slow or connection.transport is None:
                    continue
                news = {name: piece for name, piece in made.items() if follower.sent.get(name) != piece}
                follower.sent = made
                raw = {name: msgspec.Raw(piece) for name, piece in news.items()}
                line = msgspec.json.encode(FollowLine(now_t, narwhal.__version__, tokens_per_byte, raw)) + b"\n"
                if len(news) == len(made):
                    self.line_bytes = len(line)
                connection.transport.write(b"%x\r\n%s\r\n" % (len(line), line))
        except Exception:
            if not self._failed:
                log.exception("nobody can follow this router: a defect of narwhal's")
            self._failed = True
        finally:
            self._busy = False
