"""Hosts of a drill: network namespaces on one bridge, and links between them that can be cut.

Nothing of it outlives this process: the namespaces have no names, and end with the processes that hold them, which the
kernel kills together with the thread that started them. `open_network` puts that thread, and all that it starts, into
a namespace of its own, where the bridge is; so this machine's own network is never touched.
"""

import ctypes
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from narwhal.drills.drill import UnavailableError, eventually
from narwhal.drills.processes import Process

_CLONE_NEWNET = 0x40000000
_NOWHERE = "02:00:00:00:00:01"
"""A hardware address that nobody has: what is sent there is lost without a word."""


@dataclass
class Network:
    """The hub is this thread's namespace, at `hub`; hosts are at addresses of the same net."""

    folder: Path
    hub: str = "10.0.0.1"
    hosts: dict[str, Process] = field(default_factory=dict)
    """What holds the namespace of each host, by its address."""

    def add(self, address: str) -> None:
        """A further host."""
        number = len(self.hosts)
        holder = Process(f"host-{number}", ["unshare", "--net", "sleep", "infinity"], self.folder)
        holder.start()
        self.hosts[address] = holder
        own = os.readlink("/proc/thread-self/ns/net")
        eventually(lambda: os.readlink(f"/proc/{holder.pid}/ns/net") != own, "a network namespace")
        _ip("link", "add", f"host{number}", "type", "veth", "peer", "name", "eth0", "netns", str(holder.pid))
        _ip("link", "set", f"host{number}", "master", "hub", "up")
        for words in (("addr", "add", f"{address}/24", "dev", "eth0"), ("link", "set", "eth0", "up")):
            _ip(*words, on=self.on(address))
        _ip("link", "set", "lo", "up", on=self.on(address))

    def on(self, address: str) -> list[str]:
        """What a command begins with to run on a host; empty for the hub."""
        holder = self.hosts.get(address)
        return [] if holder is None else ["nsenter", f"--net=/proc/{holder.pid}/ns/net", "--"]

    def cut(self, a: str, b: str) -> None:
        """Have all that two hosts send to each other be lost from now on."""
        for source, target in ((a, b), (b, a)):
            words = ("neigh", "replace", target, "lladdr", _NOWHERE, "dev", "eth0", "nud", "permanent")
            _ip(*words, on=self.on(source))

    def mend(self, a: str, b: str) -> None:
        """Let two hosts reach each other again."""
        for source, target in ((a, b), (b, a)):
            _ip("neigh", "del", target, "dev", "eth0", on=self.on(source))

    def lose(self, address: str) -> None:
        """Have nobody reach a host, nor it anybody."""
        _ip("link", "set", f"host{list(self.hosts).index(address)}", "down")


@contextmanager
def open_network(folder: Path) -> Iterator[Network]:
    """A hub without hosts, for this thread and what it starts. Raises `UnavailableError`."""
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    network = Network(folder)
    try:
        if libc.unshare(_CLONE_NEWNET) != 0:
            raise UnavailableError(f"no network namespace: {os.strerror(ctypes.get_errno())}; run it as root")
        _ip("link", "set", "lo", "up")
        _ip("link", "add", "hub", "type", "bridge")
        _ip("addr", "add", f"{network.hub}/24", "dev", "hub")
        _ip("link", "set", "hub", "up")
        yield network
    finally:
        for holder in network.hosts.values():
            holder.kill()
        libc.setns(before, _CLONE_NEWNET)
        os.close(before)


def _ip(*words: str, on: Sequence[str] = ()) -> None:
    """Run `ip`. Raises `UnavailableError` when it refuses: then this kernel cannot do it."""
    done = subprocess.run([*on, "ip", *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise UnavailableError(
            f"ip {' '.join(words[:3])}: {done.stderr.strip()}; it takes veth and bridge of the kernel"
        )
