"""Noticing when the load generator does not get to run: stopped, starved of its core, or held up by its own work."""

import asyncio
import time
from pathlib import Path

BEAT_S = 0.05


class Heartbeat:
    """Beats on the running loop from `start` to `stop`, and keeps by how much the latest beat was late."""

    def __init__(self) -> None:
        self.late_max_s = 0.0
        """The latest beat."""
        self._due_t = 0.0
        self._next: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin."""
        self._due_t = time.monotonic() + BEAT_S
        self._next = asyncio.get_running_loop().call_later(BEAT_S, self._beat)

    def stop(self) -> None:
        """End; a beat that is overdue counts."""
        if self._next is not None:
            self._next.cancel()
            self._note()

    def _beat(self) -> None:
        self._note()
        self.start()

    def _note(self) -> None:
        self.late_max_s = max(self.late_max_s, time.monotonic() - self._due_t)


def waited_s(schedstat: Path = Path("/proc/self/schedstat")) -> float | None:
    """Seconds that this process was ready to run and had no core, so far; None where the kernel does not tell."""
    try:
        return int(schedstat.read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None
