"""Host keys: pinned in the fleet file, or confirmed once by the operator; never taken as they come."""

import base64
import binascii
import hashlib
import subprocess
from collections.abc import Mapping

from narwhal.deploy.content import host_key
from narwhal.deploy.errors import DeployError
from narwhal.deploy.frozen import write_frozen
from narwhal.deploy.opening import Opened
from narwhal.fleet.model import Host, Ssh

_KINDS = ("ssh-ed25519", "ecdsa-sha2-nistp256", "rsa-sha2-512", "ssh-rsa")
"""In order of preference."""
_SCAN_S = 10


def unpinned(opened: Opened) -> list[Host]:
    """Hosts that are reached over SSH and have no key yet."""
    hosts = opened.declared.hosts
    return [host for host in hosts if host.ssh is not None and host_key(host, opened.frozen.host_keys) is None]


def scan(name: str, ssh: Ssh) -> str:
    """The public key that answers at an address, as `KIND BASE64`. It proves nothing. Raises `DeployError`."""
    argv = ["ssh-keyscan", "-T", str(_SCAN_S), "-p", str(ssh.port), ssh.address]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_SCAN_S * 3, check=False)
    except FileNotFoundError:
        hint = "install OpenSSH's client, or pin the key: ssh.host_key of the host"
        raise DeployError("host_key", "there is no ssh-keyscan on this machine", hint=hint) from None
    except subprocess.TimeoutExpired:
        done = subprocess.CompletedProcess(argv, 1, "", "")
    keys = dict(line.split()[1:3] for line in done.stdout.splitlines() if len(line.split()) >= 3 and line[0] != "#")
    for kind in _KINDS:
        if kind in keys:
            return f"{kind} {keys[kind]}"
    hint = f"is it up, and is {ssh.address} right? Behind a jump host pin the key: ssh.host_key of {name}"
    raise DeployError("host_key", f"{name}: no SSH server answers at {ssh.address} port {ssh.port}", hint=hint)


def fingerprint(key: str) -> str:
    """A key's fingerprint, as ssh and ssh-keygen show it: `SHA256:…`. Raises `ValueError` for what is no key."""
    try:
        blob = base64.b64decode(key.split()[1], validate=True)
    except (IndexError, binascii.Error):
        raise ValueError(f"{key!r} is no public key: write it as ssh-keyscan prints it, without the address") from None
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def confirm(opened: Opened, keys: Mapping[str, str]) -> None:
    """Keep keys that the operator confirmed, by host."""
    confirmed = dict(sorted({**opened.frozen.host_keys, **keys}.items()))
    write_frozen(opened.directory, opened.frozen.model_copy(update={"host_keys": confirmed}))
