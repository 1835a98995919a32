"""The root file system that all hosts of the lab share: a small Debian with systemd, sshd and Python."""

import shutil
from pathlib import Path

from tests.lab.tools import call

_RELEASE = "bookworm"
# Without libpam-systemd, whose user managers would cost more than what an operator runs.
_PACKAGES = (
    "systemd systemd-sysv dbus openssh-server sudo python3 python3-venv iproute2 procps nftables iperf3 ca-certificates"
)
_NOT_STARTED = (
    "apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer fstrim.timer dpkg-db-backup.timer "
    "console-getty.service getty.target systemd-remount-fs.service iperf3.service nftables.service"
)
_SSHD = "PasswordAuthentication no\nUseDNS no\nMaxStartups 100:30:200\nMaxSessions 100\n"
_SOURCES = ("/etc/apt/sources.list", "/etc/apt/sources.list.d/debian.sources")
_RECIPE = "2"
"""Another one builds the root anew."""
OPERATOR = "ops"
"""The user that operators log in as; it may sudo."""


def build(folder: Path) -> Path:
    """Make the root below `folder`, once; half a minute to a minute, 300 MB. Makes the operator's key, too."""
    root, done = folder / "root", folder / "root.done"
    key = make_key(folder / "id", "lab")
    if done.exists() and done.read_text() == _RECIPE:
        return root
    shutil.rmtree(root, ignore_errors=True)
    sources = [source for source in _SOURCES if Path(source).exists()]  # this machine's own mirror
    include = _PACKAGES.replace(" ", ",")
    call("mmdebstrap", "--quiet", "--variant=minbase", f"--include={include}", _RELEASE, root, *sources)
    for host_key in (root / "etc/ssh").glob("ssh_host_*"):
        host_key.unlink()
    (root / "etc/machine-id").write_text("")
    (root / "etc/ssh/sshd_config.d/lab.conf").write_text(_SSHD)
    units = root / "etc/systemd/system"
    for unit in _NOT_STARTED.split():
        (units / unit).unlink(missing_ok=True)
        (units / unit).symlink_to("/dev/null")
    (units / "default.target").unlink(missing_ok=True)
    (units / "default.target").symlink_to("/lib/systemd/system/multi-user.target")
    _add_operator(root, key.with_suffix(".pub").read_text())
    done.write_text(_RECIPE)
    return root


def make_key(path: Path, comment: str) -> Path:
    """Make a key pair for SSH, unless it is there."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        call("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", path)
    return path


def _add_operator(root: Path, public_key: str) -> None:
    call("chroot", root, "useradd", "--create-home", "--shell", "/bin/bash", OPERATOR)
    sudoers = root / "etc/sudoers.d" / OPERATOR
    sudoers.write_text(f"{OPERATOR} ALL=(ALL) NOPASSWD: ALL\n")
    sudoers.chmod(0o440)
    for home in ("root", f"home/{OPERATOR}"):
        folder = root / home / ".ssh"
        folder.mkdir(mode=0o700, exist_ok=True)
        (folder / "authorized_keys").write_text(public_key)
    call("chroot", root, "chown", "-R", f"{OPERATOR}:", f"/home/{OPERATOR}/.ssh")
