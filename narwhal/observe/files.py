"""What Prometheus, Alertmanager and Grafana read, rendered from a fleet file: the same bytes for the same file."""

from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any

from narwhal.documents import data_path, write_atomically
from narwhal.fleet import Expanded
from narwhal.fleet.model import Scraping
from narwhal.observe.alerts import GROUPS
from narwhal.observe.prometheus import Json, alertmanager_config, prometheus_config
from narwhal.observe.rules import RECORDINGS, Alert

PROMETHEUS, RULES, ALERTMANAGER = "prometheus.yml", "narwhal.rules.yml", "alertmanager.yml"
RUNBOOKS = "runbooks.md"
_HEAD = "# Written by narwhal observe render from the fleet file; edits are lost at the next one.\n"


def observe_files(expanded: Expanded) -> dict[str, str]:
    """Text of each file by its path in the folder."""
    scraping = expanded.fleet.observability.prometheus
    files = {
        PROMETHEUS: _yaml(prometheus_config(expanded)),
        RULES: _yaml(rules(scraping)),
        ALERTMANAGER: _yaml(alertmanager_config()),
        RUNBOOKS: data_path("docs", RUNBOOKS).read_text(),
    }
    for path in sorted(data_path("templates", "grafana").rglob("*")):
        if path.is_file():
            files[f"grafana/{path.relative_to(data_path('templates', 'grafana')).as_posix()}"] = path.read_text()
    return files


def write_files(folder: Path, files: Mapping[str, str]) -> list[str]:
    """Write them into a folder, which is made where it is missing; returns the paths of those that changed."""
    changed = []
    for name, text in files.items():
        path = folder / name
        if path.is_file() and path.read_text() == text:
            continue
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True)
            path.parent.chmod(0o755)  # Prometheus and Grafana read as users of their own, whatever our umask
        write_atomically(path, text, mode=0o644)
        changed.append(name)
    return changed


def rules(scraping: Scraping) -> Json:
    """The rule file: what is computed, then what is told."""
    recordings = [{"record": rule.name, "expr": rule.expr} for rule in RECORDINGS]
    groups = [{"name": "narwhal", "rules": recordings}]
    for name, alerts in GROUPS.items():
        groups.append({"name": f"narwhal-{name}", "rules": [_alert(alert, scraping.runbooks) for alert in alerts]})
    return {"groups": groups}


def _alert(alert: Alert, runbooks: str) -> Json:
    rule: Json = {"alert": alert.name, "expr": alert.expr}
    if alert.hold_s:
        rule["for"] = f"{alert.hold_s:g}s"
    annotations = {"summary": alert.summary, "runbook_url": f"{runbooks}#{alert.anchor}"}
    return {**rule, "labels": {"severity": alert.severity}, "annotations": annotations}


def _yaml(document: Any) -> str:
    from ruamel.yaml import YAML

    writer, text = YAML(), StringIO()
    writer.width = 4096  # no line is folded: an expression stays on one
    writer.dump(document, text)
    return _HEAD + text.getvalue()
