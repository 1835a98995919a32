"""Every alert fires with its labels, clears, and is silent while all is well: by Prometheus' own tools."""

import json
from pathlib import Path

import pytest

from narwhal.documents import data_path
from narwhal.fleet import open_fleet
from narwhal.observe import observe_files, write_files
from narwhal.observe.alerts import ALERTS, GROUPS
from tests.observe.cases import CASES, FOLLOWS, QUIET, quiet
from tests.observe.tools import call

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("programs")]


@pytest.fixture
def rendered(tmp_path: Path) -> Path:
    write_files(tmp_path, observe_files(open_fleet(data_path("inventories", "one-box", "fleet.yaml"))))
    return tmp_path


def test_each_alert_fires_with_its_labels_and_clears(rendered: Path) -> None:
    tests = [case.document() for case in CASES]
    tests += [quiet("follows", FOLLOWS, 20), quiet("no traffic", QUIET, 60)]
    document = {
        "rule_files": ["narwhal.rules.yml"],
        "evaluation_interval": "30s",
        "group_eval_order": [
            "narwhal",
            *(f"narwhal-{name}" for name in GROUPS),
        ],  # else in any order, each time another
        "tests": tests,
    }
    (rendered / "tests.yml").write_text(json.dumps(document))
    call("promtool", "test", "rules", rendered / "tests.yml")


def test_there_is_a_case_for_each_alert() -> None:
    assert {case.alert for case in CASES} == {alert.name for alert in ALERTS}


@pytest.mark.parametrize("fleet", ["laptop", "one-box", "two-racks"])
def test_the_files_of_each_example_are_read(fleet: str, tmp_path: Path) -> None:
    write_files(tmp_path, observe_files(open_fleet(data_path("inventories", fleet, "fleet.yaml"))))
    assert "rules found" in call("promtool", "check", "config", tmp_path / "prometheus.yml")
    assert "2 receivers" in call("amtool", "check-config", tmp_path / "alertmanager.yml")
