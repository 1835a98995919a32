"""What clients ask for: prefill seconds that arrive, occupancy that enters decode, and how much of it stays.

Everything is kept up to date event by event, O(1) amortised; nothing here looks through requests.
"""

from collections import deque
from heapq import heappop, heappush
from math import sqrt

from narwhal.control.state import Pool, Settings

FLOW_S = 5.0
"""Span of the decode flows Y and S, in seconds (`3-control.md`, Decode side)."""
CHANGE_SIGMA = 3.0
CHANGE_SHARE = 0.15
"""A change point: the short rate differs from the long one by more than this many of its errors, and this share."""


class Window:
    """Sum, sum of squares and count of what happened in the last `span_s` seconds, kept up to date."""

    __slots__ = ("_items", "count", "span_s", "squares", "start_t", "total")

    def __init__(self, span_s: float) -> None:
        self.span_s = span_s
        self.start_t = float("-inf")
        """When counting began; nothing before it is in the window. -inf: nothing was observed yet."""
        self.total = 0.0
        self.squares = 0.0
        self.count = 0
        self._items: deque[tuple[float, float]] = deque()

    def begin(self, t: float) -> None:
        """Note the first moment of observation; later calls change nothing."""
        if self.start_t == float("-inf"):
            self.start_t = t

    def add(self, t: float, value: float) -> None:
        """Count something that happened at `t`, which does not lie before the last one."""
        self._items.append((t, value))
        self.total += value
        self.squares += value * value
        self.count += 1

    def expire(self, t: float) -> None:
        """Forget what is older than the span at `t`, or than the start."""
        items, since_t = self._items, max(t - self.span_s, self.start_t)
        while items and items[0][0] < since_t:
            _, value = items.popleft()
            self.total -= value
            self.squares -= value * value
            self.count -= 1
        if not items:
            self.total = self.squares = 0.0  # no rounding error outlives the values it came from

    def restart(self, t: float) -> None:
        """Begin anew at `t`: forget what happened before."""
        self.start_t = max(self.start_t, t)
        self.expire(t)

    def seconds(self, t: float, least_s: float) -> float:
        """Seconds that the window covers at `t`: its span, or less after a start; at least `least_s`."""
        return max(min(self.span_s, t - self.start_t), least_s)

    def rate(self, t: float, least_s: float) -> float:
        """Sum per second over what the window covers."""
        self.expire(t)
        return self.total / self.seconds(t, least_s)

    def error(self, t: float, least_s: float) -> float:
        """Standard error of `rate` for Poisson arrivals: the root of the sum of squares, per second."""
        self.expire(t)
        return sqrt(max(self.squares, 0.0)) / self.seconds(t, least_s)


class Flow:
    """One kind of demand over the horizons that the policies read, all in units per second."""

    __slots__ = ("confirm", "evidence", "least_s", "long", "short", "window")

    def __init__(self, settings: Settings) -> None:
        projection, reactive = settings.controller.projection, settings.controller.reactive
        self.least_s = projection.short_window_s
        self.short = Window(projection.short_window_s)
        self.long = Window(projection.window_s)
        """Restarts at a change point."""
        self.confirm = Window(reactive.confirmations * reactive.step_s)
        self.evidence = Window(reactive.evidence_span_s)
        self.window = Window(reactive.window_s)
        """Never restarts."""

    def begin(self, t: float) -> None:
        """Note the first moment of observation."""
        for window in self._all():
            window.begin(t)

    def add(self, t: float, value: float) -> None:
        """Count demand that arrived at `t`. Horizons forget as they go, so memory is bounded by their spans."""
        for window in self._all():
            window.add(t, value)
            window.expire(t)

    def rate(self, window: Window, t: float) -> float:
        """Demand per second over one of the horizons."""
        return window.rate(t, min(self.least_s, window.span_s))

    def changed(self, t: float) -> bool:
        """Whether the short horizon contradicts the long one: beyond chance, and by more than 15 %."""
        short, long = self.rate(self.short, t), self.rate(self.long, t)
        difference = abs(short - long)
        chance = CHANGE_SIGMA * self.short.error(t, min(self.least_s, self.short.span_s))
        return difference > chance and difference > CHANGE_SHARE * long

    def _all(self) -> tuple[Window, ...]:
        return self.short, self.long, self.confirm, self.evidence, self.window


class Demand:
    """Offered demand of one pool. Times may not run backwards; one that does counts as the latest seen."""

    def __init__(self, settings: Settings, pool: Pool) -> None:
        self._pool = pool
        self._tpot_s = settings.slo.tpot_s
        self.prefill = Flow(settings)
        """Prefill seconds that arrive, on the reference curve: per second, that is in engines."""
        self.decode = Flow(settings)
        """Occupancy of streams that finish prefill, per second."""
        self.arrivals = 0
        """Requests so far."""
        self.timeouts = 0
        """First tokens that did not come in time, so far."""
        self._t = float("-inf")
        self._entered = Window(FLOW_S)
        self._left = Window(FLOW_S)
        self._brief: list[tuple[float, float]] = []
        """Heap of (entered_t, occupancy) of streams that both entered and left in the last `FLOW_S`."""
        self._brief_total = 0.0

    def now(self, t: float) -> float:
        """The time to count with: `t`, or the latest seen if that is later."""
        if t > self._t:
            if self._t == float("-inf"):
                self.prefill.begin(t)
                self.decode.begin(t)
            self._t = t
        return self._t

    def arrived(self, t: float, cost_s: float) -> None:
        """A request arrived whose prompt costs `cost_s` seconds of prefill."""
        t = self.now(t)
        self.arrivals += 1
        self.prefill.add(t, cost_s)

    def entered_decode(self, t: float, occupancy: float) -> None:
        """A stream finished prefill; `occupancy` is its share of a decode engine in the binding term."""
        t = self.now(t)
        self.decode.add(t, occupancy)
        self._entered.add(t, occupancy)
        self._entered.expire(t)

    def left_decode(self, t: float, occupancy: float, entered_t: float) -> None:
        """A stream that entered decode at `entered_t` ended; `occupancy` is what it took at the end."""
        t = self.now(t)
        self._left.add(t, occupancy)
        self._left.expire(t)
        if entered_t > t - FLOW_S:
            heappush(self._brief, (entered_t, occupancy))
            self._brief_total += occupancy
        self._forget_brief(t)

    def first_token_timeout(self, t: float) -> None:
        """A first token did not come in time."""
        self.now(t)
        self.timeouts += 1

    def settle(self, t: float) -> bool:
        """Look for a change point; restart the long horizons after one. Returns whether there was one."""
        t = self.now(t)
        if not (self.prefill.changed(t) or self.decode.changed(t)):
            return False
        for flow in (self.prefill, self.decode):
            flow.long.restart(t - flow.short.span_s)
        return True

    def prefill_load(self, t: float) -> float:
        """pe*: prefill seconds offered per second, the larger of the long rate and the short one less its error."""
        t, flow = self.now(t), self.prefill
        error = flow.short.error(t, min(flow.least_s, flow.short.span_s))
        return max(flow.rate(flow.long, t), flow.rate(flow.short, t) - error)

    def entering(self, t: float) -> float:
        """Y: occupancy of streams that finished prefill in the last 5 s."""
        self._entered.expire(self.now(t))
        return self._entered.total

    def survival(self, t: float) -> float:
        """S: of the occupancy that was there 5 s ago, the share that still is; 1 when there was none."""
        t = self.now(t)
        self._left.expire(t)
        self._forget_brief(t)
        resident = sum(engine.occupancy(self._tpot_s) for engine in self._pool.engines.values() if engine.streams)
        young = self.entering(t) - self._brief_total
        old = max(resident - max(young, 0.0), 0.0)
        ended = max(self._left.total - self._brief_total, 0.0)
        return old / (old + ended) if old + ended > 0 else 1.0

    def mean_occupancy(self) -> float:
        """Mean share of a decode engine that a recent stream took when it entered; 0 when there was none."""
        window = self.decode.window
        return window.total / window.count if window.count else 0.0

    def _forget_brief(self, t: float) -> None:
        brief, since_t = self._brief, t - FLOW_S
        while brief and brief[0][0] <= since_t:
            self._brief_total -= heappop(brief)[1]
        if not brief:
            self._brief_total = 0.0
