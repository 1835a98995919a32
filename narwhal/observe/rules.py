"""A rule of Prometheus, and the ones that compute: rates, shares and quantiles that alerts and dashboards read."""

from dataclasses import dataclass

WINDOWS = ("5m", "30m", "1h", "6h")
"""Windows that the share of missed requests is known over."""
BY = "by (fleet)"
_FOR_LOAD = 'outcome="refused",code=~"queue|queue_full|queue_timeout|decode"'
"""Requests that were refused since the fleet is full."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A series that is computed at each evaluation."""

    name: str
    expr: str


@dataclass(frozen=True, slots=True)
class Alert:
    """Something to be told. `expr` gives one series for each instance of it."""

    name: str
    expr: str
    anchor: str
    """Section of the runbooks."""
    summary: str
    """One line; `{{ $labels.X }}` and `{{ $value }}` are Prometheus'."""
    hold_s: float = 15.0
    """How long it must hold, in seconds."""
    severity: str = "page"
    """`page`: somebody has to look now; `ticket`: somebody has to look soon."""


def _missed(window: str) -> str:
    met = f"sum {BY} (rate(narwhal_requests_met_total[{window}]))"
    return f"1 - {met} / (sum {BY} (rate(narwhal_requests_judged_total[{window}])) > 0)"


def _quantile(name: str, quantile: float) -> str:
    return f"histogram_quantile({quantile}, sum {BY[:-1]}, le) (rate(narwhal_{name}_seconds_bucket[5m])))"


RECORDINGS = (
    Recording("narwhal:requests_offered:rate1m", f"sum {BY} (rate(narwhal_requests_offered_total[1m]))"),
    Recording("narwhal:requests_met:rate1m", f"sum {BY} (rate(narwhal_requests_met_total[1m]))"),
    Recording(
        "narwhal:requests_ended:rate1m", f"sum {BY[:-1]}, outcome, code) (rate(narwhal_requests_ended_total[1m]))"
    ),
    Recording(
        "narwhal:refused_for_load:ratio_rate1m",
        f"sum {BY} (rate(narwhal_requests_ended_total{{{_FOR_LOAD}}}[1m]))"
        f" / (sum {BY} (rate(narwhal_requests_offered_total[1m])) > 0)",
    ),
    *(Recording(f"narwhal:missed:ratio_rate{window}", _missed(window)) for window in WINDOWS),
    *(
        Recording(f"narwhal:{name}_seconds:p{int(quantile * 100)}_rate5m", _quantile(name, quantile))
        for name in ("ttft", "tpot", "queue_wait")
        for quantile in (0.5, 0.95)
    ),
    Recording(
        "narwhal:role_moves:increase10m",
        f'sum {BY} (increase(narwhal_role_moves_total{{trigger!="operator"}}[10m]))',
    ),
)
