"""Sockets that the router listens on: TCP, TLS with limited handshakes, and the Unix socket with its peers."""

import asyncio
import contextlib
import ctypes
import grp
import logging
import os
import socket
import ssl
import stat
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from narwhal.fleet.places import reachable
from narwhal.router.tls import Certificate

log = logging.getLogger("narwhal.router")
BACKLOG = 4096
HANDSHAKE_S = 10.0
"""How long a TLS handshake may take, in seconds."""
MAX_HANDSHAKES = 512
"""TLS handshakes at a time; further connections wait in the kernel's queue until one ends."""
SHUTDOWN_S = 2.0
"""How long a client may take to answer the end of TLS, in seconds."""
WRITE_HIGH_BYTES = 65536
"""Bytes that wait for a slow client of a TLS stream before its engine is read no further; uvloop's own is 512 KiB."""
_LISTEN_FD = 3
"""The first descriptor that systemd passes."""
_RETRY_S = 0.1
"""When accepting fails, such as for want of descriptors, it is tried again after this many seconds."""
_M_MMAP_THRESHOLD = -3
_MAP_FROM_BYTES = 131072
_SO_PEERGROUPS = 59
_GROUPS_BYTES = 1024


class Server(Protocol):
    """Something that accepts connections until it is closed."""

    def close(self) -> None:
        """Accept nothing more; connections that were accepted go on."""


@runtime_checkable
class Secured(Protocol):
    """A server of TLS, here or in other processes."""

    name: str
    """`clients` or `admin`, for metrics."""
    certificate: Certificate
    handshakes: dict[str, int]
    """By end: `done`, `failed`, `timeout`."""

    @property
    def open_handshakes(self) -> int:
        """Handshakes under way."""


Make = Callable[[], asyncio.Protocol]


def keep_buffers_apart() -> None:
    """Have malloc map large buffers by themselves (glibc; elsewhere nothing is done).

    uvloop gives every TLS connection a buffer of 256 KiB, of which a stream touches a few pages. glibc maps such a
    buffer by itself at first, so that only these pages count, and takes it from the heap once one has been freed.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MAP_FROM_BYTES)


def bind_tcp(address: str, port: int, *, shared: bool = False) -> socket.socket:
    """A bound TCP socket. `shared`: other processes of this user may bind theirs to it too. Raises `OSError`."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    # IPPROTO_TCP by name: accepted sockets otherwise miss TCP_NODELAY, which costs 44 ms to the first token
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listener.bind((address, port))
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def inherited() -> socket.socket | None:
    """The listening socket that systemd passed (`LISTEN_FDS`): it stays open when this process closes or dies."""
    if os.environ.get("LISTEN_PID") != str(os.getpid()) or os.environ.get("LISTEN_FDS", "0") == "0":
        return None
    listener = socket.socket(fileno=os.dup(_LISTEN_FD))
    listener.setblocking(False)
    return listener


class TlsServer:
    """Accepts TLS connections: handshakes are limited in time and number, and a failed one costs nobody else.

    uvloop's own TLS server takes any number of handshakes, and its protocols are not told of those that fail.
    """

    def __init__(self, listener: socket.socket, certificate: Certificate, make: Make, name: str) -> None:
        self.certificate = certificate
        self.name = name
        """`clients` or `admin`, for metrics."""
        self.handshakes: dict[str, int] = {"done": 0, "failed": 0, "timeout": 0}
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._make = make
        self._shaking: set[asyncio.Task[None]] = set()
        self._accepting = False
        keep_buffers_apart()
        listener.listen(BACKLOG)
        self._resume()

    @property
    def open_handshakes(self) -> int:
        """Handshakes under way."""
        return len(self._shaking)

    def close(self) -> None:
        """Accept nothing more; handshakes under way are given up."""
        self._pause()
        self._listener.close()
        for task in self._shaking:
            task.cancel()

    def _resume(self) -> None:
        if not self._accepting and self._listener.fileno() >= 0:
            self._accepting = True
            self._loop.add_reader(self._listener, self._accept)

    def _pause(self) -> None:
        if self._accepting:
            self._accepting = False
            self._loop.remove_reader(self._listener)

    def _accept(self) -> None:
        while len(self._shaking) < MAX_HANDSHAKES:
            try:
                sock, _ = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                log.warning("%s: cannot accept: %s; trying again", self.name, error.strerror)
                self._pause()
                self._loop.call_later(_RETRY_S, self._resume)
                return
            task = self._loop.create_task(self._shake(sock))
            self._shaking.add(task)
            task.add_done_callback(self._shaken)
        self._pause()

    def _shaken(self, task: asyncio.Task[None]) -> None:
        self._shaking.discard(task)
        self._resume()

    async def _shake(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        try:
            made = await self._loop.connect_accepted_socket(
                self._make,
                sock,
                ssl=self.certificate.now.context,
                ssl_handshake_timeout=HANDSHAKE_S,
                ssl_shutdown_timeout=SHUTDOWN_S,
            )
        except ConnectionAbortedError:
            self.handshakes["timeout"] += 1
        except (OSError, ssl.SSLError):
            self.handshakes["failed"] += 1
        else:
            self.handshakes["done"] += 1
            transport: Any = made[0]  # uvloop's do not derive from asyncio's
            transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)


class UnixServer:
    """The server of a Unix socket, whose file goes with it."""

    def __init__(self, path: Path, server: asyncio.Server) -> None:
        self.path = path
        self._server = server
        self._made = path.lstat().st_ino

    def close(self) -> None:
        """Accept nothing more; the file goes, unless another router has replaced it."""
        self._server.close()
        with contextlib.suppress(FileNotFoundError):
            if self.path.lstat().st_ino == self._made:
                self.path.unlink()


def group_id(name: str | None) -> int | None:
    """Number of a group. Raises `KeyError` when the host has none of that name."""
    return None if name is None else grp.getgrnam(name).gr_gid


async def listen_unix(path: Path, gid: int | None, make: Make) -> UnixServer:
    """Listen on a Unix socket that its owner, and the members of a group, may open.

    Raises `OSError`, also when another router listens there; one that a killed router left is replaced.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with reachable(path) as short:
            _remove_stale(path, short)
            before = os.umask(0o177)
            try:
                listener.bind(short)
            finally:
                os.umask(before)
        if gid is not None:
            os.chown(path, -1, gid)
            os.chmod(path, 0o660)
        listener.setblocking(False)
        server = await asyncio.get_running_loop().create_unix_server(make, sock=listener, backlog=128)
    except BaseException:
        listener.close()
        raise
    return UnixServer(path, server)


def _remove_stale(path: Path, short: str) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(17, "there is a file of that name that is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(short)
        except ConnectionRefusedError:
            path.unlink()
            return
    raise OSError(98, "another router listens there")


def peer(sock: socket.socket) -> tuple[int, frozenset[int]]:
    """User and groups of the process that opened a Unix socket, as the kernel saw them then."""
    _, uid, gid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    try:
        more = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_BYTES)
    except OSError:  # more groups than fit, or a kernel before 4.13: its first group alone counts
        more = b""
    return uid, frozenset({gid, *struct.unpack(f"{len(more) // 4}I", more)})
