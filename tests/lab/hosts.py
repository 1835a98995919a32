"""Real hosts on one machine: each boots systemd on a layer of its own over one root, in namespaces of its own.

Limits of CPU and memory inside a host are accepted and not enforced; a host that reboots itself ends, and `boot` brings
it back; `LimitNOFILE=` stops at 20,000.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.lab import network
from tests.lab.root import OPERATOR, build, make_key
from tests.lab.tools import alive, call, eventually, provide

FOLDER = Path(os.environ.get("NARWHAL_LAB_DIR", "/var/tmp/narwhal-lab"))
_BOOT = """set -e
umount -R /sys/fs/cgroup; mount -t cgroup2 cgroup2 /sys/fs/cgroup
mkdir -p /sys/fs/cgroup/{name}; echo $$ > /sys/fs/cgroup/{name}/cgroup.procs
export SYSTEMD_NSPAWN_API_VFS_WRITABLE=network
exec systemd-nspawn --quiet --boot --register=no --keep-unit --directory={root} --machine={name} --hostname={host} \
  --network-namespace-path=/run/netns/{name} --resolv-conf=off --timezone=off --console=read-only \
  --capability=all {binds}
"""


class Lab:
    """Hosts `h1`, `h2`, …; the controller is a network namespace of this machine."""

    def __init__(self, folder: Path = FOLDER, binds: Sequence[str] = ()) -> None:
        self.folder = folder
        self.binds = tuple(binds)
        """Folders of this machine that every host sees, read only: `SOURCE` or `SOURCE:PLACE`."""

    @property
    def key(self) -> Path:
        """The operator's private key for SSH."""
        return self.folder / "id"

    @property
    def known_hosts(self) -> Path:
        """The hosts' keys."""
        return self.folder / "known_hosts"

    def hosts(self) -> list[str]:
        """The hosts, in order."""
        folders = (self.folder / "hosts").glob("h*")
        return sorted((folder.name for folder in folders), key=network.number)

    def root(self, host: str) -> Path:
        """Where a host's file system is on this machine."""
        return self.folder / "hosts" / host / "root"

    def host_key(self, host: str) -> str:
        """A host's public key for SSH, as `ssh-ed25519 AAAA…`."""
        text = (self.root(host) / "etc/ssh/ssh_host_ed25519_key.pub").read_text()
        return " ".join(text.split()[:2])

    # --- life

    def up(self, count: int) -> None:
        """Boot `count` hosts and wait until each answers SSH. Whatever a former lab left is taken down before."""
        provide()
        self.folder.mkdir(parents=True, exist_ok=True)
        build(self.folder)
        self.down()
        names = [f"h{index}" for index in range(1, count + 1)]
        network.lay(names)
        for host in names:
            self._boot(host)
        for host in names:
            self._wait_ssh(host)
        lines = [f"{network.address(host)} {self.host_key(host)}" for host in names]
        self.known_hosts.write_text("\n".join(lines) + "\n")

    def down(self) -> None:
        """End all hosts and remove their files, mounts, namespaces and control groups."""
        for host in self.hosts():
            self.crash(host)
            root = self.root(host)
            eventually(lambda r=root: self._unmounted(r), f"unmounting {root}")  # type: ignore[misc]
        network.remove()
        for group in _groups().glob(f"{network.PREFIX}*"):
            for folder, _, _ in os.walk(group, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(folder)
        shutil.rmtree(self.folder / "hosts", ignore_errors=True)

    def boot(self, host: str) -> None:
        """Boot a host again and wait until it answers SSH."""
        self._boot(host)
        self._wait_ssh(host)

    def crash(self, host: str) -> None:
        """A power cut: the cables first, since the kernel would still answer for the dead; then the host's init."""
        file = self.folder / "hosts" / host / "pid"
        if not file.exists():
            return
        pid = int(file.read_text())
        file.unlink()
        network.cut(host)
        self.thaw(host)
        if not alive(pid) or b"nspawn" not in Path(f"/proc/{pid}/cmdline").read_bytes():
            return
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for child in children or [str(pid)]:
            os.kill(int(child), signal.SIGKILL)
        eventually(lambda: not alive(pid), f"{host}'s end")

    def freeze(self, host: str) -> None:
        """Stop every process of a host; its kernel goes on answering for it."""
        self._freeze(host, "1")

    def thaw(self, host: str) -> None:
        """Undo `freeze`."""
        self._freeze(host, "0")

    # --- use

    def control(self, *argv: object, check: bool = True) -> "subprocess.CompletedProcess[str]":
        """Run a program in the controller's network."""
        return call("ip", "netns", "exec", network.CONTROLLER, *argv, check=check)

    def ssh(self, host: str, command: str, *, user: str = "root", check: bool = True) -> str:
        """Run a shell command on a host; what it printed."""
        options = ["-o", f"UserKnownHostsFile={self.known_hosts}", "-o", "ConnectTimeout=10", "-o", "LogLevel=ERROR"]
        where = f"{user}@{network.address(host)}"
        return self.control("ssh", "-i", self.key, *options, where, command, check=check).stdout

    # ---

    def _boot(self, host: str) -> None:
        folder, root = self.folder / "hosts" / host, self.root(host)
        for name in ("upper", "work", "root"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        if not os.path.ismount(root):
            layers = f"lowerdir={self.folder}/root,upperdir={folder}/upper,workdir={folder}/work"
            call("mount", "-t", "overlay", network.namespace(host), "-o", layers, root)
        make_key(root / "etc/ssh/ssh_host_ed25519_key", host)
        (root / "etc/hostname").write_text(f"{host}\n")
        network.mend(host)
        binds = " ".join(f"--bind-ro={bind}" for bind in self.binds)
        script = _BOOT.format(name=network.namespace(host), root=root, host=host, binds=binds)
        argv = ["unshare", "--mount", "--propagation", "private", "bash", "-c", script]
        with (folder / "console.log").open("ab") as log:
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        (folder / "pid").write_text(str(process.pid))

    def _wait_ssh(self, host: str) -> None:
        greeting = f"exec 3<>/dev/tcp/{network.address(host)}/22 && head -c 4 <&3"
        hello = ["timeout", "5", "bash", "-c", greeting]
        eventually(lambda: self.control(*hello, check=False).stdout.startswith("SSH"), f"SSH on {host}")

    def _freeze(self, host: str, value: str) -> None:
        file = _groups() / network.namespace(host) / "cgroup.freeze"
        if file.exists():
            file.write_text(value)

    @staticmethod
    def _unmounted(root: Path) -> bool:
        return not os.path.ismount(root) or call("umount", root, check=False).returncode == 0


@contextlib.contextmanager
def lab_of(count: int, *, folder: Path = FOLDER, binds: Sequence[str] = ()) -> Iterator[Lab]:
    """A lab of `count` hosts, alone on this machine; taken down at the end, whatever happens."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lab = Lab(folder, binds)
        try:
            lab.up(count)
            yield lab
        finally:
            lab.down()


def _groups() -> Path:
    """Where the unified hierarchy of control groups is mounted."""
    unified = Path("/sys/fs/cgroup/unified")
    return unified if unified.exists() else Path("/sys/fs/cgroup")


__all__ = ["FOLDER", "OPERATOR", "Lab", "lab_of"]
