"""Whether enough was seen to move: the arrival-evidence window, and settled runs (the `reactive` policy)."""

from narwhal.control.demand import Demand
from narwhal.control.records import Guard
from narwhal.fleet.model import Reactive

NEVER = float("-inf")


class Evidence:
    """The arrival-evidence window: open until enough arrivals have been seen under the present split."""

    def __init__(self, parameters: Reactive, demand: Demand) -> None:
        self._parameters = parameters
        self._demand = demand
        self._opened_t = NEVER
        self._arrivals = 0
        self._timeouts = 0

    def observe(self, t: float) -> None:
        """Open for the first time, and again after a first token that did not come in time."""
        if self._opened_t == NEVER or self._timeouts != self._demand.timeouts:
            self.open(t)

    def open(self, t: float) -> None:
        """Open the window at `t`."""
        self._opened_t = t
        self._arrivals = self._demand.arrivals
        self._timeouts = self._demand.timeouts

    def closed(self, t: float) -> Guard:
        """Closed after the span with enough arrivals, or after the longest span under sparse traffic."""
        age_s = t - self._opened_t if self._opened_t != NEVER else 0.0
        enough = self._demand.arrivals - self._arrivals >= self._parameters.evidence_min_arrivals
        limit_s = self._parameters.evidence_span_s if enough else self._parameters.evidence_max_span_s
        return Guard("evidence_span_s" if enough else "evidence_max_span_s", age_s >= limit_s, age_s, limit_s)


class Settled:
    """The run of evaluations at which nothing moved and no adjacent split was better by the margin."""

    def __init__(self) -> None:
        self._running = False
        self._since_t = NEVER
        self._until_t = NEVER

    def observe(self, t: float, *, better: bool) -> None:
        """Note an evaluation; `better`: an adjacent split was better by the margin, so the run is over."""
        if better:
            self._running = False
            return
        if not self._running:
            self._since_t = t
        self._running = True
        self._until_t = t

    def interrupt(self) -> None:
        """A move: what went before says nothing about the present split."""
        self._running = False
        self._since_t = self._until_t = NEVER

    def seconds(self, t: float, memory_s: float) -> float:
        """Length of the run that goes on at `t`, or ended no longer than `memory_s` ago; 0 when there is none."""
        return self._until_t - self._since_t if t - self._until_t <= memory_s else 0.0
