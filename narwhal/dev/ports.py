"""Free ports on loopback."""

import random
import socket
from contextlib import ExitStack

_FIRST, _LAST = 20000, 32000
"""Where a free run is looked for: below the range from which the kernel takes ports for connections."""
_TRIES = 200


def is_free(port: int) -> bool:
    """Whether nobody listens on the port on loopback."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def free_run(length: int) -> int:
    """The first of `length` consecutive free ports, at a random place. Raises `OSError` if none is found."""
    for _ in range(_TRIES):
        first = random.randrange(_FIRST, _LAST - length)  # noqa: S311 - spreads instances, no secret
        with ExitStack() as stack:
            try:
                for port in range(first, first + length):
                    probe = stack.enter_context(socket.socket())
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return first
    raise OSError(f"no {length} consecutive free ports between {_FIRST} and {_LAST} on 127.0.0.1")
