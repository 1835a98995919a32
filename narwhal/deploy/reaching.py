"""Reaching the hosts of a fleet over SSH, each with its pinned key."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from narwhal.deploy.content import known_hosts
from narwhal.deploy.opening import Opened
from narwhal.deploy.ssh import ssh_command

Reach = Callable[[str], list[str]]
"""The command that runs what follows it on a host; empty: it is this machine."""


@contextmanager
def reaching(opened: Opened) -> Iterator[Reach]:
    """The way to each host while it is open. An unknown host raises `KeyError`."""
    hosts = {host.name: host.ssh for host in opened.declared.hosts}
    with tempfile.TemporaryDirectory(prefix="narwhal-ssh-") as folder:
        known = Path(folder) / "known_hosts"
        known.write_text(known_hosts(opened.wanted.fleet, opened.wanted.host_keys))

        def reach(name: str) -> list[str]:
            ssh = hosts[name]
            return [] if ssh is None else ssh_command(ssh, known, "-o", "ControlPath=none")

        yield reach
