"""What the process is told from outside, and what it tells: signals, and systemd's notifications."""

import asyncio
import os
import signal
from collections.abc import Callable

from narwhal.engine.notify import notify


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
