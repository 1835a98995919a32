"""Departures of the `reactive` policy: leaving a settled split quickly when demand shifts."""

from narwhal.control.demand import FLOW_S, Demand, Flow
from narwhal.control.events import Role
from narwhal.control.evidence import NEVER, Settled
from narwhal.control.load import Offered
from narwhal.control.records import Guard
from narwhal.fleet.model import Reactive

CHANCE_SIGMA = 2.0
"""A rate over the confirmation span differs only beyond this many of its errors: a span of two seconds holds few
arrivals, and without this a small fleet under steady traffic follows the noise (ADR 6)."""


def differs(now: float, before: float, tolerance: float, error: float = 0.0) -> bool:
    """Whether two rates differ by more than a share of the earlier one, and by more than chance explains."""
    difference = abs(now - before)
    return difference > tolerance * before and difference > CHANCE_SIGMA * error


class Departure:
    """State: whether a departure is open, where it goes, and which moves the controller made before."""

    def __init__(self, parameters: Reactive, demand: Demand) -> None:
        self._parameters = parameters
        self._demand = demand
        self.confirmation_s = parameters.confirmations * parameters.step_s
        """Confirmation span: the shortest demand horizon."""
        self.target: Role | None = None
        """Direction of the open departure; None: none is open."""
        self._opened_t = NEVER
        self._reversing = False
        self._moved = False
        self._last_t: dict[Role, float] = {"prefill": NEVER, "decode": NEVER}

    def offered(self, t: float) -> Offered:
        """Demand over the confirmation span."""
        prefill, decode = self._demand.prefill, self._demand.decode
        return Offered(prefill.rate(prefill.confirm_s, t), decode.rate(decode.confirm_s, t) * FLOW_S)

    def demand_differs(self, t: float) -> bool:
        """Whether demand over the confirmation span differs from that of the window by more than the tolerance."""
        return any(self._flow_differs(flow, t) for flow in (self._demand.prefill, self._demand.decode))

    def follow(self, t: float, shift: Role | None, settled: Settled) -> Guard | None:
        """Open, keep or close the departure by the present `shift` (the direction it asks for; None: no shift).

        Returns the guard of the next departing move, which passes when the move may be made now; None when no
        departure is open.
        """
        if self.target is not None and (shift != self.target or t - self._opened_t >= self._parameters.window_s):
            self.target = None
            return None
        if self.target is None:
            if shift is None or not self._may_open(t, shift, settled):
                return None
            self.target, self._opened_t, self._moved = shift, t, False
            self._reversing = self._reverses(t, shift)
        limit_s = 0.0 if self._reversing or not self._moved else self._parameters.evidence_span_s
        age_s = t - self._opened_t
        return Guard("departure", age_s >= limit_s, age_s, limit_s)

    def moved(self, t: float, target: Role, *, own: bool) -> None:
        """Note a move. One against the open departure, which only others can make, closes it."""
        if own:
            self._last_t[target] = t
        if self.target == target:
            self._moved = True
        else:
            self.target = None

    def _may_open(self, t: float, shift: Role, settled: Settled) -> bool:
        need_s = self._parameters.evidence_span_s - (self.confirmation_s if self._reverses(t, shift) else 0.0)
        return settled.seconds(t, self.confirmation_s) >= need_s

    def _reverses(self, t: float, shift: Role) -> bool:
        """Whether the controller's recent moves (within the window) went the other way."""
        other: Role = "decode" if shift == "prefill" else "prefill"
        return t - self._last_t[other] <= self._parameters.window_s and self._last_t[other] > self._last_t[shift]

    def _flow_differs(self, flow: Flow, t: float) -> bool:
        now, error = flow.rate(flow.confirm_s, t), flow.error(flow.confirm_s, t)
        return differs(now, flow.rate(flow.window_s, t), self._parameters.demand_rise_tolerance, error)
