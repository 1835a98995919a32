"""What the process is told from outside, and what it tells: signals, and systemd's notifications."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable


class Orders:
    """Stop, hurry, reload; however they come."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()
        """Set by the second order to stop."""
        self.reload: Callable[[], None] = _nothing
        self.pid = os.getpid()
        """The process that takes signals."""

    def end(self) -> None:
        """Stop; when told already, hurry."""
        (self.hurry if self.stop.is_set() else self.stop).set()

    def tell(self, message: str) -> None:
        """Say something to whoever started the process."""
        notify(message)


class Signals(Orders):
    """SIGTERM and SIGINT to stop, SIGHUP to reload."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.end)
        loop.add_signal_handler(signal.SIGHUP, lambda: self.reload())


def _nothing() -> None:
    """Nobody can be told yet, or any more."""


def notify(message: str) -> None:
    """Tell systemd, when it asked to be told (`Type=notify`)."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender, contextlib.suppress(OSError):
        sender.connect("\0" + path[1:] if path.startswith("@") else path)
        sender.send(message.encode())
