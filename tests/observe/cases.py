"""For each alert: series that are well, then not, then well again, and what is told in between."""

from dataclasses import dataclass, field
from typing import Any

from narwhal.observe.alerts import ALERTS

STEP_S = 15
"""Time between two values."""
ROUTER = {"fleet": "lab", "router": "primary"}


@dataclass(frozen=True)
class Case:
    """`series`: values by name and labels. `well`, `told`, `over`: minutes at which nothing, this, nothing is told."""

    alert: str
    series: dict[str, str]
    summary: str
    labels: dict[str, str] = field(default_factory=lambda: dict(ROUTER))
    well: float = 4
    told: float = 9
    over: float = 30

    def document(self) -> dict[str, Any]:
        """As a test of promtool's."""
        alert = next(alert for alert in ALERTS if alert.name == self.alert)
        expected = {
            "exp_labels": {"severity": alert.severity, **self.labels},
            "exp_annotations": {"summary": self.summary, "runbook_url": f"runbooks.md#{alert.anchor}"},
        }
        checks = [
            {"eval_time": f"{minutes * 60:g}s", "alertname": self.alert, "exp_alerts": [expected] if told else []}
            for minutes, told in ((self.well, False), (self.told, True), (self.over, False))
        ]
        series = [{"series": name, "values": values} for name, values in self.series.items()]
        return {"name": self.alert, "interval": f"{STEP_S}s", "input_series": series, "alert_rule_test": checks}


def gauge(name: str, well: float, ill: float, labels: str = "") -> dict[str, str]:
    """Well for five minutes, ill for five (for fifteen where an alert waits longer), well again."""
    return {series(name, labels): f"{well:g}x19 {ill:g}x19 {well:g}x200"}


def series(name: str, labels: str = "") -> str:
    return f'{name}{{fleet="lab",router="primary"{"," if labels else ""}{labels}}}'


def counter(name: str, labels: str = "", by: int = 2) -> dict[str, str]:
    """Rises by so much once, after five minutes."""
    return {series(name, labels): f"0x19 {by}x200"}


ATTAINMENT = {series("narwhal_slo_attainment_ratio"): "0.95x1000"}


def missed(met: str) -> dict[str, str]:
    """One request each second, and how many of them are met."""
    return {
        **ATTAINMENT,
        series("narwhal_requests_judged_total"): "0+15x1000",
        series("narwhal_requests_met_total"): met,
    }


ENGINE = {**ROUTER, "engine": "a/0"}
PAIR = {**ROUTER, "producer": "a/0", "consumer": "b/0"}
PAIR_LABELS = 'producer="a/0",consumer="b/0"'
FLEET = {"fleet": "lab"}
LATE = 'le="0.25"'
CASES = (
    Case(
        "NarwhalBudgetBurnsFast",
        missed("0+15x20 301+1x300 616+15x200"),
        "lab misses its targets for 93.33% of requests",
        FLEET,
        told=80,
        over=100,
    ),
    Case(
        "NarwhalBudgetBurns",
        missed("0+15x20 312+12x300 3927+15x400"),
        "lab misses its targets for 20% of requests, for half an hour",
        FLEET,
        told=60,
        over=150,
    ),
    Case(
        "NarwhalAttainmentLow",
        missed("0+15x20 312+12x100 1527+15x400"),
        "80% of lab's requests were within both targets in five minutes",
        FLEET,
        told=20,
        over=60,
    ),
    Case(
        "NarwhalSaturated",
        {
            series("narwhal_requests_offered_total"): "0+15x1000",
            series("narwhal_requests_ended_total", 'outcome="refused",code="queue"'): "0x20 3+3x20 63x200",
        },
        "lab refuses 20% of requests for want of room",
        FLEET,
    ),
    Case(
        "NarwhalRouterDown",
        gauge("up", 1, 0, 'job="narwhal-router"'),
        "the primary router of lab does not answer",
        {**ROUTER, "job": "narwhal-router"},
    ),
    Case(
        "NarwhalRouterLate",
        {
            series("narwhal_loop_lag_seconds_bucket", 'le="0.001"'): "0+150x20 3000x40 3000+150x200",
            series("narwhal_loop_lag_seconds_bucket", 'le="0.1"'): "0+150x20 3000x40 3000+150x200",
            series("narwhal_loop_lag_seconds_bucket", LATE): "0+150x300",
            series("narwhal_loop_lag_seconds_bucket", 'le="+Inf"'): "0+150x300",
        },
        "the loop of lab's primary router comes 248.5ms late",
        told=14,
        over=30,
    ),
    Case(
        "NarwhalWorkerLost",
        counter("narwhal_workers_lost_total", by=1),
        "a worker of lab's primary router ended or hung",
    ),
    Case("NarwhalEngineEjected", gauge("narwhal_engine_ejected", 0, 1, 'engine="a/0"'), "a/0 of lab is out", ENGINE),
    Case(
        "NarwhalFloorBreached",
        gauge("narwhal_split_engines", 2, 1, 'role="prefill"')
        | {series("narwhal_split_floor_engines", 'role="prefill"'): "2x300"},
        "lab has 1 live prefill engines, fewer than its floor",
        {**ROUTER, "role": "prefill"},
    ),
    Case(
        "NarwhalRoleEmpty",
        gauge("narwhal_degraded", 0, 1, 'role="decode"'),
        "lab has no decode engine; the other role's serve both phases",
        {**ROUTER, "role": "decode"},
    ),
    Case("NarwhalPairOut", gauge("narwhal_link_out", 0, 1, PAIR_LABELS), "a/0 > b/0 of lab carries no handoffs", PAIR),
    Case(
        "NarwhalWrongKv",
        counter("narwhal_tries_total", 'purpose="canary",outcome="wrong"'),
        "KV arrived wrong in lab: answers may have been wrong with HTTP 200",
        {**ROUTER, "purpose": "canary", "outcome": "wrong"},
    ),
    Case(
        "NarwhalKvReadLate",
        counter("narwhal_engine_wrong_kv_alarms", 'engine="a/0"', by=1),
        "a/0 of lab had freed KV that was read then: an answer may be wrong",
        ENGINE,
    ),
    Case(
        "NarwhalCanaryUnarmed",
        {series("narwhal_canary_armed"): "1x19 0x79 1x200"},
        "KV is not compared in lab",
        told=20,
        over=40,
    ),
    Case(
        "NarwhalTransportChanged",
        counter("narwhal_link_transport_changes_total", PAIR_LABELS, by=1),
        "KV goes from a/0 to b/0 of lab by another transport",
        PAIR,
    ),
    Case(
        "NarwhalMovesThrash",
        {
            series("narwhal_role_moves_total", 'role="prefill",trigger="step"'): "0x19 0+1x20 20x200",
            series("narwhal_engine_live", 'engine="a/0"'): "1x400",
            series("narwhal_engine_live", 'engine="b/0"'): "1x400",
        },
        "lab made 16 moves in ten minutes, more than three for each engine",
        FLEET,
    ),
    Case(
        "NarwhalLeaseUnusable",
        gauge("narwhal_lease_proven", 1, 0) | {series("narwhal_lease_leads"): "1x300"},
        "the primary router of lab cannot use the lease: nobody could take over",
    ),
    Case(
        "NarwhalLeaseUnusable",
        gauge("narwhal_lease_degraded", 0, 1),
        "the primary router of lab cannot use the lease: nobody could take over",
    ),
    Case(
        "NarwhalNobodyLeads",
        gauge("narwhal_lease_leads", 1, 0) | {'narwhal_lease_leads{fleet="lab",router="standby"}': "0x300"},
        "no router of lab leads: nothing is served",
        FLEET,
    ),
    Case(
        "NarwhalStandbyMissing",
        gauge("narwhal_followers", 1, 0) | {series("narwhal_lease_leads"): "1x300"},
        "nobody follows the primary router of lab",
    ),
    Case(
        "NarwhalStandbyLate",
        gauge("narwhal_follow_lag_seconds", 1, 90),
        "the primary router of lab knows what is 1m 30s old",
    ),
    Case(
        "NarwhalJournalUnwritable",
        gauge("narwhal_journal_degraded", 0, 1),
        "the primary router of lab cannot write its journal",
    ),
    Case(
        "NarwhalStateUnwritable",
        counter("narwhal_state_writes_total", 'outcome="failed"', by=1),
        "the primary router of lab cannot keep its state on disk",
        {**ROUTER, "outcome": "failed"},
    ),
    Case(
        "NarwhalCertificateExpires",
        gauge("narwhal_tls_certificate_expiry_timestamp_seconds", 86400 * 90, 86400 + 540, 'listener="clients"'),
        "the certificate for clients of lab's primary router ends in 1d 0h 0m 0s",
        {**ROUTER, "listener": "clients"},
    ),
)
FOLLOWS = {
    series("narwhal_lease_leads"): "0x300",
    'narwhal_lease_leads{fleet="lab",router="standby"}': "1x300",
    series("narwhal_split_engines", 'role="prefill"'): "0x300",
    series("narwhal_split_floor_engines", 'role="prefill"'): "1x300",
    series("narwhal_engine_ejected", 'engine="a/0"'): "1x300",
    series("narwhal_degraded", 'role="decode"'): "1x300",
    series("narwhal_link_out", PAIR_LABELS): "1x300",
    series("narwhal_canary_armed"): "0x300",
    series("narwhal_followers"): "0x300",
}
"""What a router says that only follows: nothing to be told."""
QUIET = {
    **missed("0x1000"),
    series("narwhal_requests_judged_total"): "0x1000",
    series("narwhal_requests_offered_total"): "0x1000",
    series("narwhal_requests_ended_total", 'outcome="refused",code="queue"'): "0x1000",
}
"""No traffic: no share can be told."""


def quiet(name: str, given: dict[str, str], minutes: float) -> dict[str, Any]:
    """A test in which no alert at all is told."""
    checks = [{"eval_time": f"{minutes:g}m", "alertname": alert.name, "exp_alerts": []} for alert in ALERTS]
    values = [{"series": each, "values": text} for each, text in given.items()]
    return {"name": name, "interval": f"{STEP_S}s", "input_series": values, "alert_rule_test": checks}
