"""What clients ask for: prefill seconds that arrive, occupancy that enters decode, and how much of it stays.

Everything is kept up to date event by event, O(1) amortised; nothing here looks through requests.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from heapq import heappop, heappush
from itertools import accumulate, islice
from math import sqrt
from operator import add, mul, sub
from typing import NamedTuple

from narwhal.control.state import Pool, Settings

FLOW_S = 5.0
"""Span of the decode flows Y and S, in seconds (`3-control.md`, Decode side)."""
CHANGE_SIGMA = 3.0
CHANGE_SHARE = 0.15
"""A change point: the short rate differs from the long one by more than this many of its errors, and this share."""
COMPACT = 4096
"""Forgotten entries of a history that are dropped at once."""
NEVER = float("-inf")
ARRIVED, ENTERED, LEFT = range(3)
"""Kinds of what is noted of a request."""


class Sums(NamedTuple):
    """What happened in a span of time."""

    events: int
    total: float
    squares: float


class History:
    """Values with their times, as running sums: two appends for an event, one bisection for any span up to `keep_s`.

    What is new is summed up when somebody reads: all of it at once. Forgotten entries are dropped many at a time. The
    sums begin anew then, so that no rounding error grows with uptime: what the dropped ones had come to is taken off
    the others when they are read, and not at once.
    """

    __slots__ = ("_bases", "_head", "_new", "_squares", "_squares_now", "_times", "_total_now", "_totals", "keep_s")

    def __init__(self, keep_s: float) -> None:
        self.keep_s = keep_s
        self._head = 0
        """First entry that is not forgotten; the one before it holds the sums up to there."""
        self._times = array("d", [NEVER])
        self._new = array("d")
        """The last values, which the sums do not hold yet."""
        self._totals = array("d", [0.0])
        self._squares = array("d", [0.0])
        self._total_now = 0.0
        """The last running sum, as it is read."""
        self._squares_now = 0.0
        self._bases: list[tuple[int, float, float]] = []
        """What is taken off the sums of entries before a place, in this order: (place, total, squares)."""

    def __len__(self) -> int:
        self._sum_up()
        return len(self._times) - max(self._head, 1)

    def add(self, t: float, value: float) -> None:
        """Count something that happened at `t`, which does not lie before the last one."""
        self._times.append(t)
        new = self._new
        new.append(value)
        if len(new) >= COMPACT:
            self._sum_up()

    def _sum_up(self) -> None:
        """Take what is new into the sums, and forget what is too old."""
        new, times = self._new, self._times
        if not new:
            return
        self._totals.extend(islice(accumulate(new, initial=self._total_now), 1, None))
        self._squares.extend(islice(accumulate(map(mul, new, new), initial=self._squares_now), 1, None))
        self._total_now, self._squares_now = self._totals[-1], self._squares[-1]
        del new[:]
        self._head = bisect_left(times, times[-1] - self.keep_s, self._head)
        if self._head > COMPACT:
            self._compact()

    def keep(self, keep_s: float) -> None:
        """Remember another span from now on; what was too old for the one before is forgotten."""
        self._sum_up()
        self.keep_s = keep_s

    def since(self, t: float) -> Sums:
        """Sums of what happened at `t` or later."""
        self._sum_up()
        first = bisect_left(self._times, t, max(self._head, 1))
        events = len(self._times) - first
        if events <= 0:
            return Sums(0, 0.0, 0.0)
        total, squares = self._before(first)
        return Sums(events, self._total_now - total, max(self._squares_now - squares, 0.0))

    def _before(self, place: int) -> tuple[float, float]:
        """The running sums up to an entry, without it."""
        place -= 1
        total, squares = self._totals[place], self._squares[place]
        if place > 0:
            for end, total_base, squares_base in self._bases:
                if place < end:
                    total -= total_base
                    squares -= squares_base
        return total, squares

    def remembered(self) -> "Remembered":
        """A copy of what is not forgotten, of which another thread can make values."""
        self._sum_up()
        first = max(self._head, 1)
        totals = self._totals[first - 1 :]
        if first == 1:  # the place before all entries stands for none of what was dropped
            totals[0] += sum(base for end, base, _ in self._bases if end > 1)
        bases = [(end - first, base) for end, base, _ in self._bases]
        return Remembered(self.keep_s, self._times[first:], totals, bases)

    def remember(self, keep_s: float, times: Iterable[float], values: Iterable[float]) -> None:
        """Have seen these values at these times, and nothing else."""
        empty = History(keep_s)
        for name in self.__slots__:
            setattr(self, name, getattr(empty, name))
        self._times.extend(iter(times))  # an array of another precision is taken as what it holds
        self._new.extend(iter(values))
        self._sum_up()

    def _compact(self) -> None:
        """Drop forgotten entries; what they came to is a base of those that stay."""
        total, squares = self._before(self._head)
        dropped = self._head - 1
        for values, first in ((self._times, NEVER), (self._totals, 0.0), (self._squares, 0.0)):
            del values[:dropped]
            values[0] = first
        self._bases = [(end - dropped, a, b) for end, a, b in self._bases if end - dropped > 1]
        self._bases.append((len(self._times), total, squares))
        self._total_now -= total
        self._squares_now -= squares
        self._head = 1


class Remembered(NamedTuple):
    """What a `History` holds, copied: `totals` are the running sums before the first entry and up to each."""

    keep_s: float
    times: "array[float]"
    totals: "array[float]"
    bases: list[tuple[int, float]]
    """What running sums before a place are too high by, beyond those before."""

    def values(self, most: int) -> "tuple[float, array[float], array[float]]":
        """Time of the last entry; of each entry, its age then and its value. Single precision: to a millionth.

        Beyond `most` entries neighbours count as one, which leaves every rate as it is.
        """
        if not self.times:
            return 0.0, array("f"), array("f")
        values = array("d", map(sub, islice(self.totals, 1, None), self.totals))
        for place, base in self.bases:
            if 0 <= place < len(values):
                values[place] += base
        end_t = self.times[-1]
        ages = array("d", (end_t - t for t in self.times))
        while len(values) > most:
            odd = len(values) % 2
            values = values[:odd] + array("d", map(add, values[odd::2], values[odd + 1 :: 2]))
            ages = ages[:odd] + ages[odd + 1 :: 2]
        return end_t, array("f", ages), array("f", values)


class Flow:
    """One kind of demand over the horizons that the policies read, all in units per second."""

    __slots__ = (
        "_began_t", "_history", "add", "confirm_s", "evidence_s", "long_s", "long_start_t", "short_s", "window_s",
    )  # fmt: skip

    def __init__(self, settings: Settings) -> None:
        self._spans(settings)
        self.long_start_t = NEVER
        """The last change point."""
        self._began_t = NEVER
        self._history = History(self._longest_s())
        self.add = self._history.add
        """Count demand that arrived at a time: `add(t, value)`."""

    def _spans(self, settings: Settings) -> None:
        projection, reactive = settings.controller.projection, settings.controller.reactive
        self.short_s = projection.short_window_s
        self.long_s = projection.window_s
        """Longest span of the long horizon, which restarts at change points."""
        self.confirm_s = reactive.confirmations * reactive.step_s
        self.evidence_s = reactive.evidence_span_s
        self.window_s = reactive.window_s

    def _longest_s(self) -> float:
        return max(self.long_s, self.window_s, self.evidence_s, self.confirm_s, self.short_s)

    def retune(self, settings: Settings, t: float) -> None:
        """Take up changed horizons at `t`: longer ones begin with what is remembered."""
        self._spans(settings)
        if self._longest_s() > self._history.keep_s:
            self._began_t = max(self._began_t, t - self._history.keep_s)
        self._history.keep(self._longest_s())

    def begin(self, t: float) -> None:
        """Note the first moment of observation: spans are not diluted by the time before."""
        self._began_t = t

    def rate(self, span_s: float, t: float) -> float:
        """Demand per second over the last `span_s` seconds."""
        return max(self._history.since(t - span_s).total, 0.0) / self._seconds(span_s, t)

    def error(self, span_s: float, t: float) -> float:
        """Standard error of `rate` for Poisson arrivals: the root of the sum of squares, per second."""
        return sqrt(self._history.since(t - span_s).squares) / self._seconds(span_s, t)

    def count(self, span_s: float, t: float) -> int:
        """How many arrived in the last `span_s` seconds."""
        return self._history.since(t - span_s).events

    def long_span_s(self, t: float) -> float:
        """The long horizon: time since the last change point, within its bounds."""
        return max(min(self.long_s, t - self.long_start_t), self.short_s)

    def restart(self, t: float) -> None:
        """Begin the long horizon anew at `t`."""
        self.long_start_t = max(self.long_start_t, t)

    def changed(self, t: float) -> bool:
        """Whether the short horizon contradicts the long one: beyond chance, and by more than 15 %."""
        short, long = self.rate(self.short_s, t), self.rate(self.long_span_s(t), t)
        difference = abs(short - long)
        return difference > CHANGE_SIGMA * self.error(self.short_s, t) and difference > CHANGE_SHARE * long

    def _seconds(self, span_s: float, t: float) -> float:
        return min(span_s, max(t - self._began_t, self.short_s))


class Demand:
    """Offered demand of one pool. Times may not run backwards; one that does counts as the latest seen.

    What a request tells is noted, and counted when somebody asks: as the decisions for a request do many things once
    each, every call among them costs several times what it costs in a loop over what was noted.
    """

    def __init__(self, settings: Settings, pool: Pool) -> None:
        self._pool = pool
        self._settings = settings
        self._prefill = Flow(settings)
        self._decode = Flow(settings)
        self._noted: list[tuple[int, float, float, float, float]] = []
        """What is not counted yet: (kind, t, cost or occupancy, entered_t, occupancy then)."""
        self.arrivals = 0
        """Requests so far."""
        self.timeouts = 0
        """First tokens that did not come in time, so far."""
        self._t = NEVER
        self._entered = History(max(FLOW_S, settings.controller.reactive.window_s))
        self._left = History(FLOW_S)
        self._brief_by_t: list[tuple[float, float, float]] = []
        """Heap of (entered_t, occupancy then, occupancy at the end) of streams that came and went in `FLOW_S`."""
        self._brief_entered = 0.0
        self._brief_left = 0.0

    @property
    def prefill(self) -> Flow:
        """Prefill seconds that arrive, on the reference curve: per second, that is in engines."""
        self.count()
        return self._prefill

    @property
    def decode(self) -> Flow:
        """Occupancy of streams that finish prefill, less what leaves within `FLOW_S`, per second."""
        self.count()
        return self._decode

    def retune(self, t: float) -> None:
        """The settings were changed: horizons may be others."""
        t = self.now(t)
        for flow in (self._prefill, self._decode):
            flow.retune(self._settings, t)
        self._entered.keep(max(FLOW_S, self._settings.controller.reactive.window_s))

    def now(self, t: float) -> float:
        """The time to count with: `t`, or the latest seen if that is later."""
        self.count()
        return self._later(t)

    def _later(self, t: float) -> float:
        if t > self._t:
            if self._t == NEVER:
                self._prefill.begin(t)
                self._decode.begin(t)
            self._t = t
        return self._t

    def arrived(self, t: float, cost_s: float) -> None:
        """A request arrived whose prompt costs `cost_s` seconds of prefill."""
        self.arrivals += 1
        self._noted.append((ARRIVED, t, cost_s, 0.0, 0.0))
        if len(self._noted) >= COMPACT:
            self.count()

    def entered_decode(self, t: float, occupancy: float) -> None:
        """A stream finished prefill; `occupancy` is its share of a decode engine in the binding term."""
        self._noted.append((ENTERED, t, occupancy, 0.0, 0.0))

    def left_decode(self, t: float, occupancy: float, entered_t: float, entered: float | None = None) -> None:
        """A stream ended that had entered decode at `entered_t` with the share `entered`, `occupancy` at the end."""
        self._noted.append((LEFT, t, occupancy, entered_t, occupancy if entered is None else entered))

    def first_token_timeout(self, t: float) -> None:
        """A first token did not come in time."""
        self.now(t)
        self.timeouts += 1

    def count(self) -> None:
        """Count what was noted, in its order; nothing that is asked for changes by it."""
        if not self._noted:
            return
        noted, self._noted = self._noted, []
        prefill, decode, entered = self._prefill.add, self._decode.add, self._entered.add
        for kind, t, value, entered_t, before in noted:
            t = self._later(t)
            if kind == ARRIVED:
                prefill(t, value)
            elif kind == ENTERED:
                decode(t, value)
                entered(t, value)
            else:
                self._count_left(t, value, entered_t, before)

    def _count_left(self, t: float, occupancy: float, entered_t: float, entered: float) -> None:
        self._left.add(t, occupancy)
        if entered_t > t - FLOW_S:
            self._decode.add(t, -entered)
            heappush(self._brief_by_t, (entered_t, entered, occupancy))
            self._brief_entered += entered
            self._brief_left += occupancy
        self._forget_brief(t)

    def settle(self, t: float) -> bool:
        """Look for a change point; restart the long horizons after one. Returns whether there was one."""
        t = self.now(t)
        if not (self._prefill.changed(t) or self._decode.changed(t)):
            return False
        for flow in (self._prefill, self._decode):
            flow.restart(t - flow.short_s)
        return True

    def prefill_load(self, t: float) -> float:
        """pe*: prefill seconds offered per second, the larger of the long rate and the short one less its error."""
        t, flow = self.now(t), self._prefill
        return max(flow.rate(flow.long_span_s(t), t), flow.rate(flow.short_s, t) - flow.error(flow.short_s, t))

    def entering(self, t: float) -> float:
        """Y: occupancy of streams that finished prefill in the last 5 s and are still there.

        Those that are over already will be replaced by others as brief: they never take room at one time.
        """
        t = self.now(t)
        self._forget_brief(t)
        return max(self._entered.since(t - FLOW_S).total - self._brief_entered, 0.0)

    def survival(self, t: float) -> float:
        """S: of the occupancy that was there 5 s ago, the share that still is; 1 when there was none."""
        t = self.now(t)
        resident = sum(
            engine.occupancy(self._settings.slo.tpot_s) for engine in self._pool.engines.values() if engine.streams
        )
        old = max(resident - self.entering(t), 0.0)
        ended = max(self._left.since(t - FLOW_S).total - self._brief_left, 0.0)
        return old / (old + ended) if old + ended > 0 else 1.0

    def mean_occupancy(self) -> float:
        """Mean share of a decode engine that a recent stream took when it entered; 0 when there was none."""
        self.count()
        sums = self._entered.since(self._t - self._decode.window_s)
        return sums.total / sums.events if sums.events else 0.0

    def _forget_brief(self, t: float) -> None:
        brief, since_t = self._brief_by_t, t - FLOW_S
        while brief and brief[0][0] <= since_t:
            _, entered, left = heappop(brief)
            self._brief_entered -= entered
            self._brief_left -= left
        if not brief:
            self._brief_entered = self._brief_left = 0.0
