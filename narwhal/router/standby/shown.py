"""What a router says about its lease: in its state, and to Prometheus."""

from collections.abc import Iterable
from typing import Any

from narwhal.router.standby.feed import Feed
from narwhal.router.standby.leadership import Leadership


def lease_state(leadership: Leadership, feed: Feed) -> dict[str, Any]:
    """`lease` in the `RouterState` document."""
    standing, follower = leadership.standing, leadership.follower
    return {
        "standing": str(standing.role),
        "proven": leadership.proven,
        "epoch": standing.epoch,
        "leader": standing.holder.partition("/")[0],
        "leader_is": said if (said := standing.holder.rpartition("/")[2]) in ("primary", "standby") else "",
        "trouble": standing.trouble,
        "followers": len(feed.followers),
        "lag_s": None if follower is None or leadership.leads else follower.lag_s(),
        "follow_trouble": "" if follower is None or leadership.leads else follower.trouble,
    }


_GAUGES = {
    "lease_leads": "1 while this router serves because it holds the lease, or has not heard of another holder.",
    "lease_proven": "1 while the lease is proven.",
    "lease_epoch": "Epoch of the lease, as far as is known.",
    "lease_degraded": "1 while the lease's store cannot be used.",
    "followers": "Routers that follow this one.",
    "follow_line_bytes": "Size of the last whole line for them.",
    "follow_lag_seconds": "Time since the last line of the router that is followed.",
}
_COUNTERS = {
    "lease_terms": "Times that this router began to lead.",
    "follow_lines": "Lines of the other router that were read.",
}


class LeaseCollector:
    """What Prometheus reads about the lease. Families without samples where a router is alone and needs none."""

    def __init__(self) -> None:
        self.leadership: Leadership | None = None
        self.feed: Feed | None = None

    def collect(self) -> Iterable[Any]:
        """All metrics of the lease; see the catalogue."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for name, text in _GAUGES.items():
            yield GaugeMetricFamily(f"narwhal_{name}", text, value=self._values().get(name))
        for name, text in _COUNTERS.items():
            yield CounterMetricFamily(f"narwhal_{name}", text, value=self._values().get(name))
        writes = CounterMetricFamily("narwhal_role_map_writes", "Role maps given to the store.", labels=["outcome"])
        for outcome, number in (self.leadership.writes if self.leadership else {}).items():
            writes.add_metric([outcome], number)
        yield writes

    def _values(self) -> dict[str, float | None]:
        lead, feed = self.leadership, self.feed
        if lead is None or feed is None:
            return {}
        follower = lead.follower
        return {
            "lease_leads": float(lead.leads),
            "lease_proven": float(lead.proven),
            "lease_epoch": float(lead.standing.epoch),
            "lease_degraded": float(bool(lead.standing.trouble)),
            "lease_terms": float(lead.terms),
            "followers": float(len(feed.followers)),
            "follow_line_bytes": float(feed.line_bytes),
            "follow_lag_seconds": follower.lag_s() if follower is not None and not lead.leads else None,
            "follow_lines": float(follower.lines) if follower is not None else None,
        }
