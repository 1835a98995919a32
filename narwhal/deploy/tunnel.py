"""An SSH tunnel to a router's listeners, through the router's own host."""

import contextlib
import select
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from narwhal.deploy.content import known_hosts
from narwhal.deploy.errors import DeployError
from narwhal.deploy.opening import Opened
from narwhal.deploy.ssh import ssh_command
from narwhal.fleet import RouterSpec
from narwhal.fleet.expand import LOOPBACK, base_url
from narwhal.fleet.model import Ssh

_READY_S = 30.0
_END_S = 5.0
_LOOK_S = 0.1
_ANYWHERE = "0.0.0.0"  # noqa: S104 - what a router that listens on all addresses has


@dataclass(frozen=True, slots=True)
class Tunnel:
    """Where the router is reached while the tunnel is open."""

    router: RouterSpec
    url: str
    """For clients."""
    admin_url: str
    """For operators."""
    process: "subprocess.Popen[bytes] | None"
    """The ssh that carries it; None: the router is on this machine."""

    def ended(self) -> bool:
        """Whether ssh has ended."""
        return self.process is not None and self.process.poll() is not None


@dataclass(frozen=True, slots=True)
class TunnelWish:
    """A tunnel that is to be opened."""

    standby: bool = False
    port: int | None = None
    """Local port for clients; None: the router's own when it is free, else any."""
    admin_port: int | None = None


@contextmanager
def open_tunnel(opened: Opened, wish: TunnelWish) -> Iterator[Tunnel]:
    """Open a tunnel to a router of a fleet. Raises `DeployError` when there is none, or when it does not open."""
    expanded = opened.wanted.expanded
    found = [router for router in expanded.routers if router.standby == wish.standby]
    if not found:
        hint = "leave --standby out"
        raise DeployError("tunnel", "the fleet file names no standby", file=str(opened.file), hint=hint)
    (router,) = found
    routers = expanded.fleet.routers
    tls, admin_tls = routers.tls is not None, routers.admin.tls is not None
    ssh = next(host.ssh for host in expanded.fleet.hosts if host.name == router.host)
    if ssh is None:
        url, admin = base_url(_reached(router.bind), router.port, tls=tls), _reached(router.admin_bind)
        yield Tunnel(router, url, base_url(admin, router.admin_port, tls=admin_tls), None)
        return
    port = wish.port or _free_port(router.port)
    admin_port = wish.admin_port or _free_port(router.admin_port, port)
    with tempfile.TemporaryDirectory(prefix="narwhal-tunnel-") as folder:
        known = Path(folder) / "known_hosts"
        known.write_text(known_hosts(opened.wanted.fleet, opened.wanted.host_keys))
        forwards = {port: (router.bind, router.port), admin_port: (router.admin_bind, router.admin_port)}
        with _carried(ssh, known, forwards, router.host) as process:
            yield Tunnel(
                router, base_url(LOOPBACK, port, tls=tls), base_url(LOOPBACK, admin_port, tls=admin_tls), process
            )


@contextmanager
def _carried(
    ssh: Ssh, known: Path, forwards: dict[int, tuple[str, int]], host: str
) -> "Iterator[subprocess.Popen[bytes]]":
    options = ["-N", "-o", "ExitOnForwardFailure=yes", "-o", "ControlPath=none"]
    for local, (address, remote) in forwards.items():
        options += ["-L", f"{LOOPBACK}:{local}:[{_reached(address)}]:{remote}"]
    process = subprocess.Popen(
        ssh_command(ssh, known, *options),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        _wait_until_open(process, next(iter(forwards)), host)
        yield process
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
        process.kill()
        process.wait()


def _wait_until_open(process: "subprocess.Popen[bytes]", port: int, host: str) -> None:
    """Wait until ssh takes connections. Raises `DeployError` with its last words when it ends before."""
    assert process.stderr is not None
    deadline = time.monotonic() + _READY_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            said = process.stderr.read().decode(errors="replace").strip().splitlines()
            hint = f"try `narwhal deploy --only A --limit {host}`: it says what is wrong with the way there"
            raise DeployError("tunnel", f"{host}: {(said or ['ssh ended'])[-1]}", hint=hint)
        with contextlib.suppress(OSError):
            socket.create_connection((LOOPBACK, port), timeout=_LOOK_S).close()
            return
        select.select([process.stderr], [], [], _LOOK_S)
    raise DeployError("tunnel", f"{host}: ssh does not open within {_READY_S:.0f} s", hint="is the host up?")


def _reached(address: str) -> str:
    return LOOPBACK if address == _ANYWHERE else address


def _free_port(wanted: int, taken: int = 0) -> int:
    """The port when it is free on loopback, else any that is."""
    for port in (wanted, 0):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((LOOPBACK, port))
            found = int(probe.getsockname()[1])
            if found != taken:
                return found
    raise DeployError("tunnel", "no port of this machine is free", hint="name one: --port N --admin-port N")
