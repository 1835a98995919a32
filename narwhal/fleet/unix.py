"""HTTP over a Unix socket."""

import http.client
import socket
from pathlib import Path

from narwhal.fleet.places import reachable


class UnixConnection(http.client.HTTPConnection):
    """A connection to the socket at `path`. Time limits in seconds."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket's file."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        with reachable(self._path) as name:
            self.sock.connect(name)
