"""The socket between the supervisor and the process that decides: orders one way, news the other."""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable

from narwhal.router.orders import Orders

log = logging.getLogger("narwhal.router")
MOST_BYTES = 4096
STOP, RELOAD, WORKER, FAILED = b"stop", b"reload", b"worker", b"FAILED="
"""What is said: the first three by the supervisor, `FAILED=` with a reason back; any other is for systemd."""

Attach = Callable[[int, int, socket.socket], None]
"""Takes a worker's slot, its pid, and the socket to it."""


class Channel(Orders):
    """Orders of the supervisor. When it is gone, that is an order to stop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
        super().__init__()
        self.attach: Attach
        self.pid = os.getppid()
        self._loop = loop
        self._sock = sock
        sock.setblocking(False)
        loop.add_reader(sock, self._read)

    def tell(self, message: str) -> None:
        """Have the supervisor tell systemd, which listens to the main process alone."""
        with contextlib.suppress(OSError):
            self._sock.send(message.encode())

    def _read(self) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(self._sock, MOST_BYTES, 1)
        except BlockingIOError:
            return
        except OSError:
            data, fds = b"", []
        word, *rest = data.split() or [b""]
        if word == WORKER:
            slot, pid = map(int, rest)
            self.attach(slot, pid, socket.socket(fileno=fds[0]))
        elif word == RELOAD:
            self.reload()
        elif word == STOP:
            self.end()
        else:
            log.error("the process that started this one is gone: stopping")
            self._loop.remove_reader(self._sock)
            self.end()


def send_worker(channel: socket.socket, slot: int, pid: int, sock: socket.socket) -> None:
    """Hand a worker's socket over. Raises `OSError`."""
    socket.send_fds(channel, [b"%s %d %d" % (WORKER, slot, pid)], [sock.fileno()])
