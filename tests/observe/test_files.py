"""What is rendered, and that its links lead somewhere."""

import re
from pathlib import Path

import pytest

from narwhal.documents import data_path
from narwhal.fleet import Expanded, open_fleet
from narwhal.observe import observe_files, write_files
from narwhal.observe.alerts import ALERTS
from narwhal.observe.files import rules
from narwhal.observe.prometheus import KIND, admin_urls, prometheus_config
from narwhal.router import targets
from tests.router.harness import write_fleet

RUNBOOKS = data_path("docs", "runbooks.md").read_text()


def fleet_of(folder: Path, old: str = "", new: str = "") -> Expanded:
    path, _, _ = write_fleet(folder, [9101, 9102])
    path.write_text(path.read_text().replace(old, new, 1) if old else path.read_text())
    return open_fleet(path)


def slug(heading: str) -> str:
    """A heading's anchor, as forges make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_each_alert_has_its_section_and_each_section_its_alerts() -> None:
    sections = re.split(r"^## ", RUNBOOKS, flags=re.MULTILINE)[1:]
    named = {(slug(text.split("\n", 1)[0]), name) for text in sections for name in re.findall(r"`(Narwhal\w+)`", text)}
    assert named == {(alert.anchor, alert.name) for alert in ALERTS}


def test_rules_go_by_metrics_that_there_are(tmp_path: Path) -> None:
    catalogue = data_path("docs", "reference", "metrics.md").read_text()
    known = set(re.findall(r"^\| `(narwhal_\w+)", catalogue, re.MULTILINE))
    named = re.findall(r"\bnarwhal_[a-z_]+", observe_files(fleet_of(tmp_path))["narwhal.rules.yml"])
    used = {re.sub("_(bucket|sum|count)$", "", name) for name in named}
    assert len(used) > 8
    assert used <= known


def test_links_of_the_runbooks_lead_somewhere() -> None:
    for page, anchor in re.findall(r"\]\(([\w/.-]*)#?([\w-]*)\)", RUNBOOKS):
        text = data_path("docs", page).read_text() if page else RUNBOOKS
        if anchor:
            assert anchor in [slug(line.lstrip("# ")) for line in text.splitlines() if line.startswith("#")], page


def test_each_alert_says_how_urgent_it_is_and_where_to_read_on(tmp_path: Path) -> None:
    scraping = fleet_of(tmp_path).fleet.observability.prometheus
    found = [rule for group in rules(scraping)["groups"] for rule in group["rules"] if "alert" in rule]
    assert len(found) == len(ALERTS) == len({rule["alert"] for rule in found})
    for rule in found:
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"]["runbook_url"].startswith("runbooks.md#")
    elsewhere = scraping.model_copy(update={"runbooks": "https://wiki.example/narwhal"})
    assert "https://wiki.example/narwhal#wrong-kv" in str(rules(elsewhere))


def test_the_same_fleet_renders_to_the_same_bytes(tmp_path: Path) -> None:
    expanded = fleet_of(tmp_path)
    files = observe_files(expanded)
    (tmp_path / "out").mkdir()
    assert sorted(write_files(tmp_path / "out", files)) == sorted(files)
    assert write_files(tmp_path / "out", observe_files(expanded)) == []
    (tmp_path / "out/prometheus.yml").write_text("edited")
    assert write_files(tmp_path / "out", files) == ["prometheus.yml"]


def test_the_token_goes_to_routers_and_to_no_engine(tmp_path: Path) -> None:
    given = "observability: {prometheus: {token_file: /etc/prometheus/t, ca_file: /etc/prometheus/ca.pem}, "
    router, engine = prometheus_config(fleet_of(tmp_path, "observability: {", given))["scrape_configs"]
    assert router["authorization"] == {"credentials_file": "/etc/prometheus/t"}
    assert router["tls_config"] == {"ca_file": "/etc/prometheus/ca.pem"}
    assert "authorization" not in engine
    for job in (router, engine):
        assert job["http_sd_configs"][0]["authorization"] == router["authorization"]
        assert job["relabel_configs"][0]["source_labels"] == [KIND]


def test_labels_of_the_fleet_stand_on_every_target(tmp_path: Path) -> None:
    expanded = fleet_of(tmp_path, "{name: lab}", "{name: lab, labels: {cost-centre: a$b}}")
    for job in prometheus_config(expanded)["scrape_configs"]:
        assert {"target_label": "cost_centre", "replacement": "a$$b"} in job["relabel_configs"]


@pytest.mark.parametrize(("example", "routers"), [("one-box", ["primary"]), ("two-racks", ["primary", "standby"])])
def test_routers_are_found_where_their_operators_are_heard(example: str, routers: list[str]) -> None:
    expanded = open_fleet(data_path("inventories", example, "fleet.yaml"))
    found = targets.targets(expanded, expanded.engines)
    kinds = [target.labels[KIND] for target in found]
    assert kinds == ["router"] * len(routers) + ["engine"] * len(expanded.engines)
    assert [target.labels["router"] for target in found[: len(routers)]] == routers
    places = [f"{target.labels['__scheme__']}://{target.targets[0]}" for target in found[: len(routers)]]
    assert admin_urls(expanded) == places
    engines = [(target.targets, target.labels["engine"]) for target in found[len(routers) :]]
    assert engines == [([f"{engine.address}:{engine.port}"], engine.id) for engine in expanded.engines]
