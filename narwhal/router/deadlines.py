"""Deadlines of requests, at the price of a dictionary entry each.

All deadlines of one kind last equally long, so the order in which they are armed is the order in which they pass:
looking for those that are due reads the front of each kind and never scans requests. A request's own deadline counts
from its first byte, before its body was whole, and so may be found late by as long as a body before it took to come.
"""

import math

from narwhal.control.events import Deadline


class Deadlines:
    """At most one deadline of each kind a request."""

    def __init__(self) -> None:
        self._by_kind: dict[Deadline, dict[int, float]] = {}

    def arm(self, number: int, what: Deadline, until: float) -> None:
        """Set a request's deadline, in seconds on the loop's clock; an infinite one is none."""
        kind = self._by_kind.setdefault(what, {})
        kind.pop(number, None)
        if until != math.inf:
            kind[number] = until

    def disarm(self, number: int, what: Deadline) -> None:
        """Forget a request's deadline of one kind."""
        kind = self._by_kind.get(what)
        if kind is not None:
            kind.pop(number, None)

    def due(self, now: float) -> list[tuple[int, Deadline]]:
        """Take out what has passed."""
        due: list[tuple[int, Deadline]] = []
        for what, kind in self._by_kind.items():
            numbers = []
            for number, until in kind.items():
                if until > now:
                    break
                numbers.append(number)
            for number in numbers:
                del kind[number]
                due.append((number, what))
        return due

    def __len__(self) -> int:
        return sum(len(kind) for kind in self._by_kind.values())
