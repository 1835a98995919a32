"""Deadlines of requests on a wheel: setting, forgetting and finding one costs O(1), whatever else waits.

Time is cut into slots; a deadline lies in the slot in which it passes and is found when that slot is over, so it comes
late by at most one slot. Nothing is assumed about the order in which deadlines are set or how long they last.
"""

import math

from narwhal.control.events import Deadline

Slot = dict[int, Deadline]
"""The requests whose deadline passes in one span of time, and what each waits for."""


class Deadlines:
    """At most one deadline a request."""

    def __init__(self, now: float, slot_s: float) -> None:
        self.slot_s = slot_s
        self._slots: dict[int, Slot] = {}
        self._turned = int(now / slot_s)
        """The last slot that is over."""

    def arm(self, number: int, what: Deadline, until: float) -> Slot | None:
        """Set a deadline, in seconds on the loop's clock; an infinite one is none.

        The slot is handed out: `slot.pop(number)` forgets the deadline.
        """
        if until == math.inf:
            return None
        place = max(int(until / self.slot_s), self._turned + 1)
        slot = self._slots.get(place)
        if slot is None:
            slot = self._slots[place] = {}
        slot[number] = what
        return slot

    def due(self, now: float) -> list[tuple[int, Deadline]]:
        """Take out what has passed."""
        due: list[tuple[int, Deadline]] = []
        last = int(now / self.slot_s) - 1
        for place in range(self._turned + 1, last + 1):
            slot = self._slots.pop(place, None)
            if slot:
                due += slot.items()
        self._turned = max(self._turned, last)
        return due

    def __len__(self) -> int:
        return sum(len(slot) for slot in self._slots.values())
