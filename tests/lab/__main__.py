"""The lab by hand, as root: `python -m tests.lab up 3`, `ssh h1 'journalctl -n 20'`, `control COMMAND…`, `down`.

Also `build`, and of one host: `boot`, `crash`, `cut`, `mend`, `freeze`, `thaw`; of two: `part`; of none: `join`.
"""

import subprocess
import sys

from tests.lab import network
from tests.lab.hosts import Lab
from tests.lab.root import build
from tests.lab.tools import provide


def main(command: str, *arguments: str) -> int:
    lab = Lab()
    if command == "build":
        provide()
        build(lab.folder)
    elif command == "up":
        lab.up(int(arguments[0]))
    elif command == "ssh":
        print(lab.ssh(arguments[0], " ".join(arguments[1:]), check=False), end="")
    elif command == "control":
        return subprocess.run(["ip", "netns", "exec", network.CONTROLLER, *arguments], check=False).returncode
    elif command in ("down", "boot", "crash", "freeze", "thaw"):
        getattr(lab, command)(*arguments)
    elif command in ("cut", "mend", "part", "join", "lose", "lose_nothing"):
        getattr(network, command)(*arguments)
    else:
        print(__doc__, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:] or ["help"]))
