"""Asking a Prometheus and an Alertmanager."""

import json
from dataclasses import replace
from typing import Any
from urllib.parse import quote
from urllib.request import ProxyHandler, build_opener

from narwhal.fleet import Expanded
from narwhal.observe import Running

Labels = dict[str, str]
_open = build_opener(ProxyHandler({})).open


def get(url: str) -> Any:
    """A JSON document. Raises `OSError`, for another status than 200 too."""
    with _open(url, timeout=30) as answer:
        return json.loads(answer.read())


def hurried(expanded: Expanded, interval_s: float = 1.0) -> Expanded:
    """The same fleet, scraped and judged more often."""
    fleet = expanded.fleet
    scraping = fleet.observability.prometheus.model_copy(update={"interval_s": interval_s})
    observability = fleet.observability.model_copy(update={"prometheus": scraping})
    return replace(expanded, fleet=fleet.model_copy(update={"observability": observability}))


def query(running: Running, expr: str) -> list[Any]:
    """The series that an expression comes to now: `metric` and `value` of each."""
    found: list[Any] = get(f"{running.prometheus_url}/api/v1/query?query={quote(expr, safe='')}")["data"]["result"]
    return found


def told(running: Running) -> list[Labels]:
    """Labels of the alerts that Alertmanager would tell people of."""
    assert running.alertmanager_url is not None
    return [alert["labels"] for alert in get(f"{running.alertmanager_url}/api/v2/alerts?active=true")]


def among(wanted: Labels, found: list[Labels]) -> bool:
    """Whether some alert has all these labels."""
    return any(wanted.items() <= labels.items() for labels in found)
