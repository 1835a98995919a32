"""Where Narwhal is installed on a host, where a router keeps its state, and where its Unix socket for operators is."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from narwhal.fleet.expanded import Expanded

NARWHAL_HOME = "/opt/narwhal"
"""Where gate B installs: a folder for each revision, and `current`, the one that runs."""
DEPLOYED = f"{NARWHAL_HOME}/current/bin/narwhal"
"""The program there. It names the Python of its own revision, so what runs never imports from the next one."""
_SYSTEM_STATE = Path("/var/lib/narwhal")
_UNIX_PATH_BYTES = 107


def default_state_dir(environ: Mapping[str, str]) -> Path:
    """`StateDirectory=` of a unit, else the user's state directory."""
    if given := environ.get("STATE_DIRECTORY", "").partition(":")[0]:
        return Path(given)
    base = environ.get("XDG_STATE_HOME") or str(Path(environ.get("HOME", "/")) / ".local/state")
    return Path(base) / "narwhal"


def admin_socket(expanded: Expanded, state_dir: Path) -> Path:
    """The Unix socket of a fleet's router: `routers.admin.socket`, else in the router's state directory.

    The port is in the name: two routers of one host differ in it, so a verb never speaks to another fleet's router.
    A standby on its primary's host adds `-standby` to a socket that the file names.
    """
    given, router = expanded.fleet.routers.admin.socket, expanded.routers[0]
    if given:
        return Path(f"{given}-standby" if router.standby and expanded.on_one_host else given)
    return state_dir / f"admin-{router.admin_port}.sock"


def admin_sockets(expanded: Expanded, environ: Mapping[str, str]) -> list[Path]:
    """Where the socket of a fleet's router may be on this host: a unit's state first, then the user's."""
    folders = (_SYSTEM_STATE, default_state_dir(environ))
    return list(dict.fromkeys(admin_socket(expanded, folder) for folder in folders))


@contextlib.contextmanager
def reachable(path: Path) -> Iterator[str]:
    """A name for a Unix socket that is short enough for the kernel, whatever the length of its path."""
    if len(os.fsencode(path)) <= _UNIX_PATH_BYTES:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
