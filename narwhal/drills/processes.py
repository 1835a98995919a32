"""Processes of a drill. The kernel kills them when the drill's own thread ends, however it ends."""

import ctypes
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))


@dataclass
class Process:
    """A program that is started, and may be started again. Its output goes to `NAME.log` in `folder`."""

    name: str
    argv: Sequence[str]
    folder: Path
    environ: Mapping[str, str] = field(default_factory=dict)
    """What it finds in its environment beside this process's own."""
    socket: int | None = None
    """Descriptor of a listening socket that it is given as its third, the way systemd does."""
    _popen: "subprocess.Popen[bytes] | None" = None

    @property
    def log(self) -> Path:
        """The file that holds its output, of all its lives."""
        return self.folder / f"{self.name}.log"

    @property
    def pid(self) -> int:
        """Of its present life."""
        return self._process.pid

    @property
    def runs(self) -> bool:
        """Whether it has been started and has not ended."""
        return self._popen is not None and self._popen.poll() is None

    def start(self) -> None:
        """Start it, in a session of its own."""
        given: dict[str, Any] = {}
        argv, before = list(self.argv), _die_with_parent
        if (listener := self.socket) is not None:
            argv = ["sh", "-c", 'LISTEN_FDS=1 LISTEN_PID=$$ exec "$@"', "sh", *argv]
            given = {"close_fds": False}  # Python's own are closed at exec in any case

            def before() -> None:
                _die_with_parent()
                os.dup2(listener, 3)
                os.set_inheritable(3, True)

        with self.log.open("ab") as log:
            self._popen = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environ},
                start_new_session=True,
                preexec_fn=before,
                **given,
            )

    def kill(self) -> None:
        """SIGKILL, to all its processes, and wait for its end."""
        if self._popen is not None:
            self.send_group(signal.SIGKILL)
            self._popen.wait()

    def send(self, number: signal.Signals) -> None:
        """Signal it alone."""
        self._process.send_signal(number)

    def send_group(self, number: signal.Signals) -> None:
        """Signal it and all processes that it has started; nothing when they are gone."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def wait(self, seconds: float) -> int | None:
        """Its exit code; None when it has not ended by then."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def resident_bytes(self) -> int:
        """Memory that it has now."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGESIZE")

    def descriptors(self) -> int:
        """Files and sockets that it has open."""
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def tail(self, lines: int = 4) -> str:
        """The end of its output."""
        return " | ".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    @property
    def _process(self) -> "subprocess.Popen[bytes]":
        if self._popen is None:
            raise RuntimeError(f"{self.name} was never started")
        return self._popen
