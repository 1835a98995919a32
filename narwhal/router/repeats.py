"""Orders that were given under an idempotency key: repeated, they are answered as before, and done once."""

from collections import OrderedDict
from collections.abc import Callable

from narwhal.router.envelope import Reply
from narwhal.router.http import Connection

KEPT_S = 600.0
"""How long a key is remembered, in seconds."""
MOST = 1024
"""Keys that are remembered at a time; the oldest goes first."""
Owner = tuple[str, str]
"""Who gave an order, and the key."""


class ReusedError(Exception):
    """The key was used for another order."""


class Repeats:
    """What is remembered by this process alone: a router that takes over knows no key."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._kept: OrderedDict[Owner, tuple[float, bytes, Reply]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def is_new(self, owner: Owner, order: bytes, reply: Reply, connection: Connection) -> bool:
        """Whether an order is to be carried out, for `reply`; otherwise it is answered as it was before.

        `order`: all that it says. Raises `ReusedError`.
        """
        self._forget_old()
        known = self._kept.get(owner)
        if known is None:
            self._kept[owner] = self._now(), order, reply
            reply.undecided = lambda: self._drop(owner)
            return True
        if known[1] != order:
            raise ReusedError
        known[2].repeat(connection)
        return False

    def _drop(self, owner: Owner) -> None:
        self._kept.pop(owner, None)

    def _forget_old(self) -> None:
        while self._kept:
            oldest, (t, _, _) = next(iter(self._kept.items()))
            if len(self._kept) < MOST and self._now() - t < KEPT_S:
                return
            del self._kept[oldest]
