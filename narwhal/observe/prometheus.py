"""The configurations of Prometheus and Alertmanager."""

import re
from typing import Any

from narwhal.fleet import Expanded
from narwhal.fleet.expand import base_url

Json = dict[str, Any]
KIND = "__meta_narwhal_kind"
"""As the router's `/narwhal/targets` calls it."""
TARGETS = "/narwhal/targets"
JOBS = {"narwhal-router": "router", "narwhal-engine": "engine"}
"""Scrape jobs, and the kind of target that each takes."""
_NO_LABEL = re.compile(r"[^a-zA-Z0-9_]")


def prometheus_config(expanded: Expanded) -> Json:
    """Prometheus' configuration: everything to scrape is asked of the routers, so it follows the fleet by itself."""
    scraping = expanded.fleet.observability.prometheus
    whole = scraping.interval_s == int(scraping.interval_s)
    interval = f"{scraping.interval_s:.0f}s" if whole else f"{scraping.interval_s * 1000:.0f}ms"
    return {
        "global": {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval},
        "rule_files": ["narwhal.rules.yml"],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [scraping.alertmanager]}]}]},
        "scrape_configs": [_job(expanded, job, kind, interval) for job, kind in JOBS.items()],
    }


def _job(expanded: Expanded, name: str, kind: str, interval: str) -> Json:
    access = _access(expanded)
    discovery = [{"url": f"{url}{TARGETS}", "refresh_interval": interval, **access} for url in admin_urls(expanded)]
    relabel: list[Json] = [{"source_labels": [KIND], "regex": kind, "action": "keep"}]
    for label, value in sorted(expanded.fleet.metadata.labels.items()):
        relabel.append({"target_label": _NO_LABEL.sub("_", label), "replacement": value.replace("$", "$$")})
    return {
        "job_name": name,
        **(access if kind == "router" else {}),
        "http_sd_configs": discovery,
        "relabel_configs": relabel,
    }


def _access(expanded: Expanded) -> Json:
    """How Prometheus shows who it is, and knows a router."""
    scraping, access = expanded.fleet.observability.prometheus, Json()
    if scraping.token_file is not None:
        access["authorization"] = {"credentials_file": scraping.token_file}
    if scraping.ca_file is not None:
        access["tls_config"] = {"ca_file": scraping.ca_file}
    return access


def admin_urls(expanded: Expanded) -> list[str]:
    """Where the routers' operators are heard; on loopback, where a Prometheus on that router's host finds it."""
    tls = expanded.fleet.routers.admin.tls is not None
    places: dict[tuple[str, int], None] = {}
    for router in expanded.routers:
        everywhere = router.admin_bind == "0.0.0.0"  # noqa: S104
        places[router.address if everywhere else router.admin_bind, router.admin_port] = None
    return [base_url(address, port, tls=tls) for address, port in places]


def alertmanager_config() -> Json:
    """An example: what is urgent and what is not apart, to receivers that yet need to be told how to reach people."""
    return {
        "route": {
            "receiver": "tickets",
            "group_by": ["fleet", "alertname"],
            "group_wait": "10s",
            "group_interval": "1m",
            "repeat_interval": "4h",
            "routes": [{"matchers": ["severity = page"], "receiver": "pages"}],
        },
        "inhibit_rules": [
            {
                "source_matchers": ["alertname = NarwhalRouterDown"],
                "target_matchers": ["severity = ticket"],
                "equal": ["fleet", "router"],
            },
            {
                "source_matchers": ["alertname = NarwhalBudgetBurnsFast"],
                "target_matchers": ["alertname =~ NarwhalBudgetBurns|NarwhalAttainmentLow"],
                "equal": ["fleet"],
            },
        ],
        "receivers": [{"name": "pages"}, {"name": "tickets"}],
    }
