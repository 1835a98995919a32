"""What the dashboards show: panels with their queries, apart from how Grafana wants them written."""

from dataclasses import dataclass

FLEET = 'fleet="$fleet"'


@dataclass(frozen=True, slots=True)
class Query:
    """One expression; `$fleet`, `$engine` are the dashboard's variables."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel: a number, or lines over time."""

    title: str
    queries: tuple[Query, ...]
    unit: str = "short"
    stat: bool = False
    description: str = ""
    limit: float | None = None
    """Value that is drawn as the limit."""


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """A dashboard."""

    uid: str
    title: str
    rows: tuple[Row, ...]
    engine: bool = False
    """Whether it has the variable `$engine`."""


def _line(title: str, expr: str, legend: str = "", unit: str = "short", **more: object) -> Panel:
    return Panel(title, (Query(expr, legend),), unit, **more)  # type: ignore[arg-type]


def _stat(title: str, expr: str, unit: str = "short", legend: str = "") -> Panel:
    return Panel(title, (Query(expr, legend),), unit, stat=True)


def _of(metric: str, more: str = "") -> str:
    return f"{metric}{{{FLEET}{more}}}"


def _with_target(title: str, name: str) -> Panel:
    """Median and 95th percentile of a time, beside its target."""
    target = "ttft" if name == "queue_wait" else name
    return Panel(
        title,
        (
            Query(_of(f"narwhal:{name}_seconds:p50_rate5m"), "median"),
            Query(_of(f"narwhal:{name}_seconds:p95_rate5m"), "95 %"),
            Query(f"max({_of(f'narwhal_slo_{target}_seconds')})", "target"),
        ),
        "s",
    )


_SERVING = Row(
    "Is it serving",
    (
        _stat("Within both targets, 5 min", f"1 - {_of('narwhal:missed:ratio_rate5m')}", "percentunit"),
        _stat("Requests met each second", _of("narwhal:requests_met:rate1m"), "reqps"),
        _stat("Open requests", f"sum({_of('narwhal_requests_open')})"),
        _stat("Live engines", f"max by (role) ({_of('narwhal_split_engines')})", legend="{{role}}"),
        _line("Requests by end", _of("narwhal:requests_ended:rate1m"), "{{outcome}} {{code}}", "reqps"),
        Panel(
            "Missed targets",
            tuple(Query(_of(f"narwhal:missed:ratio_rate{window}"), window) for window in ("5m", "1h")),
            "percentunit",
        ),
        _with_target("Time to first token", "ttft"),
        _with_target("Time per token", "tpot"),
        _with_target("Waiting in the router", "queue_wait"),
        _line("Tokens to clients", f"sum(rate({_of('narwhal_tokens_generated_total')}[1m]))", "tokens/s"),
    ),
)
_DECIDED = Row(
    "What did it decide",
    (
        _line("Engines by role", f"max by (role) ({_of('narwhal_split_engines')})", "{{role}}"),
        _line("Load over target", f"max by (role) ({_of('narwhal_load_ratio')})", "{{role}}", "percentunit", limit=1.0),
        _line("Moves in ten minutes", _of("narwhal:role_moves:increase10m"), "by the controller"),
        _line(
            "Decisions each minute",
            f"60 * sum by (outcome) (rate({_of('narwhal_decisions_total')}[5m]))",
            "{{outcome}}",
        ),
    ),
)
_ROUTER = ',job="narwhal-router"'
_WRONG = Row(
    "What is wrong",
    (
        _stat("Engines out", f"sum({_of('narwhal_engine_ejected')})"),
        _stat("Pairs out", f"sum({_of('narwhal_link_out')})"),
        _stat("Canary armed", f"max({_of('narwhal_canary_armed')})"),
        _stat("Journal cannot be written", f"max({_of('narwhal_journal_degraded')})"),
        _line("Alerts", f'count by (alertname) (ALERTS{{{FLEET},alertstate="firing"}}) or vector(0)', "{{alertname}}"),
        _line(
            "Changes of engines", f"sum by (change) (increase({_of('narwhal_engine_changes_total')}[5m]))", "{{change}}"
        ),
        _line("Retries and streams that went on", f"sum(rate({_of('narwhal_retries_total')}[1m]))", "retries", "reqps"),
        Panel(
            "The router itself",
            (
                Query(f"sum by (router) (rate({_of('process_cpu_seconds_total', _ROUTER)}[1m]))", "{{router}} cores"),
                Query(
                    "histogram_quantile(0.99, sum by (router, le) "
                    f"(rate({_of('narwhal_loop_lag_seconds_bucket')}[5m])))",
                    "{{router}} loop late, 99 %",
                ),
            ),
        ),
        _line("Router's memory", _of("process_resident_memory_bytes", _ROUTER), "{{router}}", "bytes"),
        _line("Client connections", _of("narwhal_client_connections"), "{{router}}"),
    ),
)
_ENGINE = ',engine=~"$engine"'
_CONSUMER = ',consumer=~"$engine"'
_WORK = Row(
    "Work",
    (
        _line("Role: 1 prefill, 0 decode", _of("narwhal_engine_role_prefill", _ENGINE), "{{engine}}"),
        _line("May have work", _of("narwhal_engine_live", _ENGINE), "{{engine}}"),
        _line("Streams", _of("narwhal_engine_residents", _ENGINE), "{{engine}}"),
        _line("Prompts", _of("narwhal_engine_prefills", _ENGINE), "{{engine}}"),
        _line("Batch, as the engine says", _of("narwhal_engine_batch_requests", _ENGINE), "{{engine}}"),
        _line("KV in use", _of("narwhal_engine_kv_usage_ratio", _ENGINE), "{{engine}}", "percentunit", limit=1.0),
        _line("Occupancy", _of("narwhal_engine_occupancy_ratio", _ENGINE), "{{engine}}", "percentunit", limit=1.0),
        _line("Backlog", _of("narwhal_engine_backlog_seconds", _ENGINE), "{{engine}}", "s"),
    ),
)
_SPEED = Row(
    "Speed and health",
    (
        _line(
            "Mean prefill",
            f"rate({_of('narwhal_engine_prefill_seconds_sum', _ENGINE)}[5m]) / "
            f"rate({_of('narwhal_engine_prefill_seconds_count', _ENGINE)}[5m])",
            "{{engine}}",
            "s",
        ),
        _line(
            "Mean time per token",
            f"rate({_of('narwhal_engine_tpot_seconds_sum', _ENGINE)}[5m]) / "
            f"rate({_of('narwhal_engine_tpot_seconds_count', _ENGINE)}[5m])",
            "{{engine}}",
            "s",
        ),
        _line("Decode interval over profile", _of("narwhal_engine_drift_ratio", _ENGINE), "{{engine}}", limit=1.5),
        _line("Strikes", _of("narwhal_engine_strikes", _ENGINE), "{{engine}}"),
        _line("Restarts", _of("narwhal_engine_restarts", _ENGINE), "{{engine}}"),
        _line("Generation", _of("narwhal_engine_info", _ENGINE), "{{engine}} {{generation}}"),
    ),
)
_LINKS = Row(
    "Links",
    (
        _line(
            "KV handed over",
            f"sum by (producer, consumer) (rate({_of('narwhal_link_bytes_total', _CONSUMER)}[1m]))",
            "{{producer}} > {{consumer}}",
            "Bps",
        ),
        _line(
            "Mean handoff",
            f"rate({_of('narwhal_link_handoff_seconds_sum', _CONSUMER)}[5m]) / "
            f"rate({_of('narwhal_link_handoff_seconds_count', _CONSUMER)}[5m])",
            "{{producer}} > {{consumer}}",
            "s",
        ),
        _line(
            "Failures in five minutes",
            f"increase({_of('narwhal_link_failures_total', _CONSUMER)}[5m])",
            "{{producer}} > {{consumer}}",
        ),
        _line(
            "Out",
            _of("narwhal_link_out", _CONSUMER),
            "{{producer}} > {{consumer}}",
        ),
        _line(
            "Transport",
            _of("narwhal_link_info", _CONSUMER),
            "{{producer}} > {{consumer}} {{transport}}",
        ),
    ),
)
_OWN = Row(
    "The engines' own metrics",
    (
        _line("Running", _of("vllm:num_requests_running", _ENGINE), "{{engine}}"),
        _line("Waiting", _of("vllm:num_requests_waiting", _ENGINE), "{{engine}}"),
        _line("KV cache in use", _of("vllm:kv_cache_usage_perc", _ENGINE), "{{engine}}", "percentunit", limit=1.0),
    ),
)
_SCORES = Row(
    "What it weighs",
    (
        _line("Scores of splits, lower is better", _of("narwhal_split_score"), "{{split}}"),
        _line("Load over target", _of("narwhal_load_ratio"), "{{role}}", "percentunit", limit=1.0),
        _line("Gates: 1 open, 0 shut", _of("narwhal_gate_open"), "{{gate}}"),
        _line("Held by gate", f"sum by (gate) (increase({_of('narwhal_gate_held_total')}[10m]))", "{{gate}}"),
        _line(
            "Moves by reason",
            f"sum by (role, trigger) (increase({_of('narwhal_role_moves_total')}[10m]))",
            "to {{role}}: {{trigger}}",
        ),
        _line("Engines and floors", _of("narwhal_split_engines"), "{{role}}"),
        _line("Floors", _of("narwhal_split_floor_engines"), "{{role}}"),
        _line("Epoch of roles", _of("narwhal_role_epoch"), "epoch"),
        _line("Held by the operator", _of("narwhal_hold"), "hold"),
    ),
)
_ADMISSION = Row(
    "Admission",
    (
        _line("Waiting prompts", _of("narwhal_queue_requests"), "waiting"),
        _line("Slack in prices", _of("narwhal_admission_slack_seconds"), "slack", "s"),
        _line("Handoff", _of("narwhal_handoff_seconds"), "mean", "s"),
        _line("Second tries left", _of("narwhal_tries_left"), "{{kind}}"),
    ),
)
PAGES = (
    Page("narwhal-ops", "Narwhal: operations", (_SERVING, _DECIDED, _WRONG)),
    Page("narwhal-engines", "Narwhal: engines", (_WORK, _SPEED, _LINKS, _OWN), engine=True),
    Page("narwhal-controller", "Narwhal: controller", (_SCORES, _ADMISSION)),
)
"""The dashboards."""
