"""Deadlines of requests on a wheel: setting, forgetting and finding one costs O(1), whatever else waits.

Time is cut into slots. A request lies in the slot in which it is to be looked at next: when its deadline passes, and
after `LOOK_S` at the latest. Most deadlines are farther away and are moved or forgotten before, so setting one is two
assignments; a request that is over is dropped at its next look. A deadline is found when its slot is over, so it comes
late by at most one slot. Nothing is assumed about the order in which deadlines are set or how long they last.
"""

import math

import msgspec

from narwhal.control.events import Deadline

LOOK_S = 4.0
"""Longest time between two looks at a request, in seconds: how long one that is over may still take memory."""


class Watch(msgspec.Struct, eq=False, gc=False):
    """What one request waits for, and until when, in seconds on the loop's clock."""

    number: int
    limit_t: float = math.inf
    """End of the time that the request may take as a whole."""
    what: Deadline | None = None
    until_t: float = math.inf
    over: bool = False
    place: int = 0
    """The slot that counts; in another one that it was put into before, it is passed over."""

    def disarm(self) -> None:
        """It waits for nothing but its end."""
        self.what, self.until_t = None, math.inf


class Deadlines:
    """At most two deadlines a request: of what it waits for, and of its end."""

    def __init__(self, now: float, slot_s: float) -> None:
        self.slot_s = slot_s
        self._slots: dict[int, list[Watch]] = {}
        self._turned = int(now / slot_s)
        """The last slot that is over."""

    def watch(self, number: int, now: float, limit_t: float) -> Watch:
        """Watch a request that arrives now, until it is said to be `over`."""
        watch = Watch(number, limit_t)
        self._put(watch, min(limit_t, now + LOOK_S))
        return watch

    def arm(self, watch: Watch, what: Deadline, until: float) -> None:
        """Set a request's deadline, in place of the one before; an infinite one is none."""
        watch.what, watch.until_t = what, until
        if until < watch.place * self.slot_s:
            self._put(watch, until)

    def _put(self, watch: Watch, look_t: float) -> None:
        watch.place = place = max(int(look_t / self.slot_s), self._turned + 1)
        slot = self._slots.get(place)
        if slot is None:
            self._slots[place] = [watch]
        else:
            slot.append(watch)

    def due(self, now: float) -> list[tuple[int, Deadline]]:
        """Take out what has passed."""
        first, self._turned = self._turned + 1, max(self._turned, int(now / self.slot_s) - 1)
        due: list[tuple[int, Deadline]] = []
        for place in range(first, self._turned + 1):
            for watch in self._slots.pop(place, ()):
                if watch.over or watch.place != place:
                    continue
                if watch.what is not None and watch.until_t <= now:
                    due.append((watch.number, watch.what))
                    watch.disarm()
                if watch.limit_t <= now:
                    due.append((watch.number, "request"))
                    watch.limit_t = math.inf
                self._put(watch, min(watch.until_t, watch.limit_t, now + LOOK_S))
        return due

    def __len__(self) -> int:
        """Entries of all slots, those that no longer count included."""
        return sum(len(slot) for slot in self._slots.values())
