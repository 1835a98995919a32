"""The ssh command that reaches a host of a fleet, with its pinned key and no question."""

import os
from pathlib import Path

from narwhal.fleet.model import Ssh

_ALIVE = ("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3", "-o", "ConnectTimeout=10")
DEFAULT_PORT = 22


def ssh_command(ssh: Ssh, known_hosts: Path, *options: str) -> list[str]:
    """`ssh` with options and destination; what it runs there may follow.

    The identity is the agent's or of `~/.ssh/config`, or that of `ANSIBLE_PRIVATE_KEY_FILE`, which Ansible takes too.
    """
    identity = os.environ.get("ANSIBLE_PRIVATE_KEY_FILE")
    argv = ["ssh", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", *_ALIVE]
    argv += ["-o", f'UserKnownHostsFile="{known_hosts.absolute()}"', "-p", str(ssh.port)]
    argv += ["-i", identity] if identity else []
    return [*argv, *options, f"{ssh.user}@{ssh.address}"]


def known_host_line(ssh: Ssh, key: str) -> str:
    """A host's line of `known_hosts`."""
    address = ssh.address if ssh.port == DEFAULT_PORT else f"[{ssh.address}]:{ssh.port}"
    return f"{address} {key}\n"
