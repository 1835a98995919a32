"""What somebody is to be told, and when. `docs/runbooks.md` says for each what to do; a test compares the two."""

from narwhal.observe.rules import Alert

LEADS = "unless on (fleet, router) narwhal_lease_leads == 0"
"""A standby that follows holds no roles of its own: what it says of them is nothing to be woken by."""


def _burn(times: float, short: str, long: str) -> str:
    """The share of missed requests is so many times what the SLO allows, over two windows.

    Capped: where the SLO allows more than 1/times, nothing could ever exceed it. Formula: Google's SRE workbook,
    chapter 5.
    """
    allowed = f"clamp_max({times:g} * (1 - max by (fleet) (narwhal_slo_attainment_ratio)), 0.9)"
    return " and ".join(f"narwhal:missed:ratio_rate{window} > {allowed}" for window in (short, long))


_SERVICE = (
    Alert(
        "NarwhalBudgetBurnsFast",
        _burn(14.4, "5m", "1h"),
        "budget-burns",
        "{{ $labels.fleet }} misses its targets for {{ $value | humanizePercentage }} of requests",
        hold_s=30,
    ),
    Alert(
        "NarwhalBudgetBurns",
        _burn(3, "30m", "6h"),
        "budget-burns",
        "{{ $labels.fleet }} misses its targets for {{ $value | humanizePercentage }} of requests, for half an hour",
        hold_s=60,
        severity="ticket",
    ),
    Alert(
        "NarwhalAttainmentLow",
        "1 - narwhal:missed:ratio_rate5m < max by (fleet) (narwhal_slo_attainment_ratio)",
        "attainment-low",
        "{{ $value | humanizePercentage }} of {{ $labels.fleet }}'s requests were within both targets in five minutes",
        hold_s=300,
        severity="ticket",
    ),
    Alert(
        "NarwhalSaturated",
        "narwhal:refused_for_load:ratio_rate1m > 0.05",
        "saturated",
        "{{ $labels.fleet }} refuses {{ $value | humanizePercentage }} of requests for want of room",
        hold_s=20,
    ),
    Alert(
        "NarwhalRouterDown",
        'up{job="narwhal-router"} == 0',
        "router-down",
        "the {{ $labels.router }} router of {{ $labels.fleet }} does not answer",
    ),
    Alert(
        "NarwhalRouterLate",
        "histogram_quantile(0.99, sum by (fleet, router, le) (rate(narwhal_loop_lag_seconds_bucket[5m]))) > 0.1",
        "router-late",
        "the loop of {{ $labels.fleet }}'s {{ $labels.router }} router comes {{ $value | humanizeDuration }} late",
        hold_s=120,
        severity="ticket",
    ),
    Alert(
        "NarwhalWorkerLost",
        "increase(narwhal_workers_lost_total[10m]) > 0",
        "worker-lost",
        "a worker of {{ $labels.fleet }}'s {{ $labels.router }} router ended or hung",
        hold_s=0,
        severity="ticket",
    ),
)
_ENGINES = (
    Alert(
        "NarwhalEngineEjected",
        f"narwhal_engine_ejected == 1 {LEADS}",
        "engine-ejected",
        "{{ $labels.engine }} of {{ $labels.fleet }} is out",
        hold_s=10,
    ),
    Alert(
        "NarwhalFloorBreached",
        f"narwhal_split_engines < narwhal_split_floor_engines {LEADS}",
        "floor-breached",
        "{{ $labels.fleet }} has {{ $value }} live {{ $labels.role }} engines, fewer than its floor",
        hold_s=20,
    ),
    Alert(
        "NarwhalRoleEmpty",
        f"narwhal_degraded == 1 {LEADS}",
        "role-empty",
        "{{ $labels.fleet }} has no {{ $labels.role }} engine; the other role's serve both phases",
        hold_s=5,
    ),
    Alert(
        "NarwhalPairOut",
        f"narwhal_link_out == 1 {LEADS}",
        "pair-out",
        "{{ $labels.producer }} > {{ $labels.consumer }} of {{ $labels.fleet }} carries no handoffs",
        hold_s=10,
        severity="ticket",
    ),
    Alert(
        "NarwhalWrongKv",
        'increase(narwhal_tries_total{purpose="canary",outcome="wrong"}[10m]) > 1.5',
        "wrong-kv",
        "KV arrived wrong in {{ $labels.fleet }}: answers may have been wrong with HTTP 200",
        hold_s=0,
    ),
    Alert(
        "NarwhalKvReadLate",
        "delta(narwhal_engine_wrong_kv_alarms[10m]) > 0",
        "wrong-kv",
        "{{ $labels.engine }} of {{ $labels.fleet }} had freed KV that was read then: an answer may be wrong",
        hold_s=0,
    ),
    Alert(
        "NarwhalCanaryUnarmed",
        f"narwhal_canary_armed == 0 {LEADS}",
        "canary-unarmed",
        "KV is not compared in {{ $labels.fleet }}",
        hold_s=600,
        severity="ticket",
    ),
    Alert(
        "NarwhalTransportChanged",
        "increase(narwhal_link_transport_changes_total[15m]) > 0",
        "transport-changed",
        "KV goes from {{ $labels.producer }} to {{ $labels.consumer }} of {{ $labels.fleet }} by another transport",
        hold_s=0,
        severity="ticket",
    ),
    Alert(
        "NarwhalMovesThrash",
        "narwhal:role_moves:increase10m > 3 * max by (fleet) (count by (fleet, router) (narwhal_engine_live))",
        "moves-thrash",
        "{{ $labels.fleet }} made {{ $value | humanize }} moves in ten minutes, more than three for each engine",
        hold_s=60,
        severity="ticket",
    ),
)
_KEEPING = (
    Alert(
        "NarwhalLeaseUnusable",
        "narwhal_lease_degraded == 1 or (narwhal_lease_leads == 1 and narwhal_lease_proven == 0)",
        "lease-unusable",
        "the {{ $labels.router }} router of {{ $labels.fleet }} cannot use the lease: nobody could take over",
        hold_s=10,
    ),
    Alert(
        "NarwhalNobodyLeads",
        "max by (fleet) (narwhal_lease_leads) == 0",
        "nobody-leads",
        "no router of {{ $labels.fleet }} leads: nothing is served",
    ),
    Alert(
        "NarwhalStandbyMissing",
        "narwhal_followers == 0 and on (fleet, router) narwhal_lease_leads == 1",
        "standby-missing",
        "nobody follows the {{ $labels.router }} router of {{ $labels.fleet }}",
        hold_s=30,
        severity="ticket",
    ),
    Alert(
        "NarwhalStandbyLate",
        "narwhal_follow_lag_seconds > 10",
        "standby-missing",
        "the {{ $labels.router }} router of {{ $labels.fleet }} knows what is {{ $value | humanizeDuration }} old",
        severity="ticket",
    ),
    Alert(
        "NarwhalJournalUnwritable",
        "narwhal_journal_degraded == 1",
        "journal-unwritable",
        "the {{ $labels.router }} router of {{ $labels.fleet }} cannot write its journal",
        severity="ticket",
    ),
    Alert(
        "NarwhalStateUnwritable",
        'increase(narwhal_state_writes_total{outcome="failed"}[10m]) > 0',
        "state-unwritable",
        "the {{ $labels.router }} router of {{ $labels.fleet }} cannot keep its state on disk",
        hold_s=0,
        severity="ticket",
    ),
    Alert(
        "NarwhalCertificateExpires",
        "narwhal_tls_certificate_expiry_timestamp_seconds - time() < 14 * 86400",
        "certificate-expires",
        "the certificate for {{ $labels.listener }} of {{ $labels.fleet }}'s {{ $labels.router }} router ends in "
        "{{ $value | humanizeDuration }}",
        severity="ticket",
    ),
)
GROUPS: dict[str, tuple[Alert, ...]] = {"service": _SERVICE, "engines": _ENGINES, "keeping": _KEEPING}
"""The alerts, by what they are about."""
ALERTS = tuple(alert for group in GROUPS.values() for alert in group)
