"""One end of the socket between control and a relay: what is put is sent once for each turn of the loop.

What nobody waits for may lie for a millisecond, so that it goes with what somebody does.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any

from narwhal.router.workers.wire import Batch, Frames, Read, frame

LIE_S = 0.001
"""How long a message may lie that nobody waits for, in seconds."""


class Link(asyncio.Protocol):
    """`received` is given each batch, `lost` is called when the other end is gone."""

    def __init__(
        self, sock: socket.socket, read: Read, received: Callable[[Batch], None], lost: Callable[[], None]
    ) -> None:
        self.sent = 0
        """Frames that were sent."""
        self.seen = 0
        """Frames that came, the one that is being taken included."""
        self.open = True
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._frames = Frames(read)
        self._received = received
        self._lost = lost
        self._out: list[Any] = []
        self._flushes = self._lies = False
        """Whether `flush` is called in this turn of the loop, or soon."""
        self._transport: Any = None

    async def start(self) -> None:
        """Read from now on, and send what was put before."""
        self._transport, _ = await self._loop.create_unix_connection(lambda: self, sock=self._sock)
        self.flush()

    def put(self, message: Any) -> None:
        """Send something with what else there is in this turn of the loop."""
        self._out.append(message)
        if not self._flushes:
            self._flushes = True
            self._loop.call_soon(self.flush)

    def lay(self, message: Any) -> None:
        """Send something with whatever is sent next, or in a moment."""
        self._out.append(message)
        if not self._lies and not self._flushes:
            self._lies = True
            self._loop.call_later(LIE_S, self._pick_up)

    def _pick_up(self) -> None:
        self._lies = False
        self.flush()

    def flush(self) -> None:
        """Send what was put, now: before anything that is written to any other connection afterwards."""
        self._flushes = False
        out = self._out
        if not out or self._transport is None or not self.open:
            return
        self._out = []
        self.sent += 1
        data = frame(out)
        done = 0
        if not self._transport.get_write_buffer_size():
            with contextlib.suppress(OSError):  # no room, or gone: the transport finds out which
                done = self._sock.send(data)  # the loop's own would be sent at the end of the turn, in any order
        if done < len(data):
            self._transport.write(data[done:] if done else data)

    def close(self) -> None:
        """Send what was put, and close."""
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        """Take the batches that are whole."""
        for batch in self._frames.feed(data):
            self.seen += 1
            self._received(batch)

    def connection_lost(self, exc: Exception | None) -> None:
        """The other end is gone, or this one was closed."""
        self.open = False
        self._lost()
