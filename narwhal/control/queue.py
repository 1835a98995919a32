"""A queue that is fair between tenants: strict between priority classes, weighted within one.

Within a class the request of the tenant that was served the fewest tokens for its weight is next (`Share.served`, the
virtual counter of VTC; requests of one tenant keep their order). A tenant that had nothing waiting begins at the
class's virtual time, which is the counter of whoever was taken last: it can neither save up turns nor lose any (start
tag and v(t) of start-time fair queueing, Goyal, Vin and Cheng, SIGCOMM 1996, section 2). One whose requests are refused
because nothing is free is not idle, and keeps its place. Work-conserving: something is next whenever something waits.

Counters rise while requests wait, so the heap of tenants is put in order when it is read: each change of a counter
costs one O(log tenants) step at most. No operation looks through tenants or requests, but `oldest` and `reweigh`.
"""

from collections import OrderedDict
from collections.abc import Iterator
from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING, NamedTuple

from narwhal.control.tenants import PRIORITIES, Share

if TYPE_CHECKING:
    from narwhal.control.state import Request

LOWER_SHARE = 0.1
"""Share of the prefill seconds that a class gets while the one above it never runs empty: the bound on starving."""
SLACK = 64
"""Void entries that a heap may hold beyond the tenants that wait, before it is made anew."""


class Ahead(NamedTuple):
    """What is served before a request that comes now."""

    requests: float
    cost_s: float
    """Their prefill seconds."""


NOTHING = Ahead(0.0, 0.0)


class Line:
    """The waiting requests of one share, in order."""

    __slots__ = ("cost_s", "requests", "share", "stamp")

    def __init__(self, share: Share) -> None:
        self.share = share
        self.requests: OrderedDict[int, Request] = OrderedDict()
        self.cost_s = 0.0
        self.stamp = 0
        """Names its entry in the heap; others are void."""


class PriorityClass:
    """The lines of one priority."""

    __slots__ = ("_heap", "_stamp", "cost_s", "count", "latest", "lines", "virtual", "weight")

    def __init__(self) -> None:
        self.lines: dict[Share, Line] = {}
        self.count = 0
        self.cost_s = 0.0
        self.weight = 0.0
        """Sum of the weights of lines that are not empty."""
        self.virtual = 0.0
        """The highest counter at which a share was taken."""
        self.latest: Share | None = None
        """The share that was taken last; its requests may run and be charged since."""
        self._heap: list[tuple[float, int, Line]] = []
        self._stamp = 0

    def now(self) -> float:
        """The class's virtual time: where a share begins that had nothing waiting."""
        latest = self.latest
        return latest.served if latest is not None and latest.served > self.virtual else self.virtual

    def taken(self, share: Share) -> None:
        """A request of a share is served now, before it is charged."""
        self.latest = share
        self.virtual = max(self.virtual, share.served)

    def line(self, share: Share) -> Line:
        """The line of a share."""
        line = self.lines.get(share)
        if line is None:
            line = self.lines[share] = Line(share)
        return line

    def opened(self, line: Line) -> None:
        """A line that was empty got a request."""
        self.weight += line.share.weight
        self._stamp += 1
        line.stamp = self._stamp
        heappush(self._heap, (line.share.served, line.stamp, line))
        if len(self._heap) > len(self.lines) + SLACK:
            self._heap = [entry for entry in self._heap if entry[1] == entry[2].stamp]
            heapify(self._heap)

    def closed(self, line: Line) -> None:
        """A line became empty."""
        line.cost_s, line.stamp = 0.0, 0
        self.weight = self.weight - line.share.weight if self.count else 0.0

    def head(self) -> "Request":
        """Whose turn it is; there is one."""
        heap = self._heap
        while True:
            served, stamp, line = heap[0]
            if line.stamp != stamp:
                heappop(heap)
            elif line.share.served > served:
                heapreplace(heap, (line.share.served, stamp, line))
            else:
                return next(iter(line.requests.values()))


class FairQueue:
    """Requests that wait for one thing. A request is in it once at most."""

    def __init__(self) -> None:
        self.cost_s = 0.0
        """Sum of the waiting requests' prefill costs."""
        self.count = 0
        """How many wait: its length, without a call."""
        self._classes = tuple(PriorityClass() for _ in PRIORITIES)
        self._credit_s = 0.0
        """Prefill seconds that the lower class may take although the upper one waits."""

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator["Request"]:
        return (request for each in self._classes for line in each.lines.values() for request in line.requests.values())

    def __contains__(self, request: "Request") -> bool:
        line = self._classes[request.share.rank].lines.get(request.share)
        return line is not None and request.id in line.requests

    def push(self, request: "Request", *, front: bool = False) -> None:
        """Let a request wait; `front`: before its tenant's others, because it has waited already."""
        share = request.share
        each = self._classes[share.rank]
        line = each.line(share)
        if not line.requests:
            if not front:
                share.begin(request.arrived_t, each.now())
            each.opened(line)
        line.requests[request.id] = request
        if front:
            line.requests.move_to_end(request.id, last=False)
        line.cost_s += request.cost_s
        each.count += 1
        each.cost_s += request.cost_s
        self.count += 1
        self.cost_s += request.cost_s

    def head(self) -> "Request | None":
        """The request whose turn it is; it stays in the queue."""
        if not self.count:
            return None
        upper, lower = self._classes
        if not upper.count:
            return lower.head()
        if lower.count and self._credit_s > 0.0:
            request = lower.head()
            if self._credit_s >= request.cost_s:
                return request
        return upper.head()

    def pass_by(self, request: "Request") -> None:
        """A request is served without having waited, since nothing does: as `push` and `take` of it."""
        share = request.share
        each = self._classes[share.rank]
        if each.latest is share and share.served >= each.virtual:  # the same in one step: one tenant alone
            each.virtual = share.served
            return
        share.begin(request.arrived_t, each.now())
        each.taken(share)

    def take(self, request: "Request") -> None:
        """Remove a request that is served now, if it is there: time goes on for the others."""
        if not self.remove(request):
            return
        share, (upper, lower) = request.share, self._classes
        each = self._classes[share.rank]
        each.taken(share)
        if lower.count:
            earned_s = request.cost_s * LOWER_SHARE / (1.0 - LOWER_SHARE) if each is upper else -request.cost_s
            self._credit_s = max(self._credit_s + earned_s, 0.0)

    def remove(self, request: "Request") -> bool:
        """Remove a request, if it is there; whether it was."""
        share = request.share
        each = self._classes[share.rank]
        line = each.lines.get(share)
        if line is None or line.requests.pop(request.id, None) is None:
            return False
        self.count -= 1
        each.count -= 1
        line.cost_s -= request.cost_s
        each.cost_s = each.cost_s - request.cost_s if each.count else 0.0
        self.cost_s = self.cost_s - request.cost_s if self.count else 0.0
        if not line.requests:
            each.closed(line)
            if not self._classes[1].count:
                self._credit_s = 0.0
        return True

    def ahead(self, share: Share, lead_s: float = 0.0) -> Ahead:
        """What is served before a request of `share` that comes now, in fluid terms.

        All of the classes above; all of its own line; of the other lines of its class as much as their weights get
        meanwhile, and at most what is there; of the class below what the bound on starving gives it. `lead_s`: prefill
        seconds by which the share has been served beyond the others, which they catch up with first.
        """
        each = self._classes[share.rank]
        line = each.lines.get(share)
        count, cost_s, weight = (
            (len(line.requests), line.cost_s, share.weight) if line and line.requests else (0, 0.0, 0.0)
        )
        rivals = max(each.weight - weight, 0.0) / share.weight
        other_count, other_s = each.count - count, max(each.cost_s - cost_s, 0.0)
        others_s = min(other_s, (cost_s + lead_s) * rivals)
        others = other_count * (others_s / other_s) if other_s > 0.0 else float(other_count)
        count_ahead, ahead_s = count + others, cost_s + others_s
        upper, lower = self._classes
        if each is lower:
            return Ahead(count_ahead + upper.count, ahead_s + upper.cost_s)
        if lower.count and ahead_s > 0.0:
            given_s = min(self._credit_s + ahead_s * LOWER_SHARE / (1.0 - LOWER_SHARE), lower.cost_s)
            return Ahead(
                count_ahead + lower.count * (given_s / lower.cost_s if lower.cost_s else 1.0), ahead_s + given_s
            )
        return Ahead(count_ahead, ahead_s)

    def oldest(self) -> "Request | None":
        """The request that arrived first, of those at the head of a line. O(tenants): for looks, not for requests."""
        heads = [
            next(iter(line.requests.values()))
            for each in self._classes
            if each.count
            for line in each.lines.values()
            if line.requests
        ]
        return min(heads, key=lambda request: (request.arrived_t, request.id), default=None)

    def reweigh(self) -> None:
        """Weights were changed: sum them up anew."""
        for each in self._classes:
            each.weight = sum(line.share.weight for line in each.lines.values() if line.requests)
