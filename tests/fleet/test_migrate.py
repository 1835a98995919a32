"""Older spellings are read, and rewritten with their comments."""

import pytest

from narwhal.documents import API_VERSION
from narwhal.fleet import SourceError, check_text, migrate_source
from narwhal.fleet.migrate import MIGRATIONS
from narwhal.fleet.source import parse_source

OLD = """\
# The lab's fleet.
apiVersion: narwhal/v1alpha1  # before the first release
kind: Fleet
metadata: {name: lab}
model: {name: m, path: "/models/m"}
slo:
  # promised to the lab
  ttft_ms: 2000  # two seconds
  tpot_ms: 60
hosts:
  - name: local   # this machine
engines:
  runtime: {kind: simulated}
  per_host: 2
split: {prefill: 1, decode: 1}
routers:
  primary: local
  api_port: 8000  # clients
  admin_port: 8001
# the end
"""


def test_comments_order_and_quotes_survive() -> None:
    migrated = migrate_source(parse_source(OLD, "f"))
    assert migrated.text == (
        OLD.replace("narwhal/v1alpha1", "narwhal/v1      ")  # comments keep their column
        .replace("ttft_ms: 2000", "ttft_s: 2.0  ")
        .replace("tpot_ms: 60", "tpot_s: 0.06")
        .replace("api_port: 8000", "port: 8000    ")
        .replace("admin_port: 8001", "admin:\n    port: 8001")
    )
    assert migrated.changes == (
        "slo.ttft_ms -> slo.ttft_s, in seconds",
        "slo.tpot_ms -> slo.tpot_s, in seconds",
        "routers.api_port -> routers.port",
        "routers.admin_port -> routers.admin.port",
        "apiVersion -> narwhal/v1",
    )


def test_the_rewrite_is_good_and_migrating_it_again_changes_nothing() -> None:
    text = migrate_source(parse_source(OLD, "f")).text
    assert check_text(text).findings == ()
    again = migrate_source(parse_source(text, "f"))
    assert (again.text, again.changes) == (text, ())


def test_an_older_file_is_read_as_it_is() -> None:
    checked = check_text(OLD)
    assert checked.findings == ()
    assert checked.older == "narwhal/v1alpha1"
    assert checked.fleet is not None
    assert (checked.fleet.slo.ttft_s, checked.fleet.routers.admin.port) == (2.0, 8001)


def test_mistakes_in_an_older_file_are_found() -> None:
    found = check_text(OLD.replace("prefill: 1", "prefill: 2")).findings
    assert [f.id for f in found] == ["NW030"]


@pytest.mark.parametrize("version", ["narwhal/v9", "5", None])
def test_an_unknown_version_is_said_clearly(version: str | None) -> None:
    text = "kind: Fleet\n" + (f"apiVersion: {version}\n" if version else "")
    with pytest.raises(SourceError) as error:
        migrate_source(parse_source(text, "f"))
    assert error.value.code == "unknown-version"
    assert API_VERSION in error.value.hint


def test_what_is_not_yaml_is_not_migrated() -> None:
    with pytest.raises(SourceError, match="not YAML"):
        migrate_source(parse_source("a: [", "f"))


def test_every_migration_leads_to_the_current_version() -> None:
    for migration in MIGRATIONS:
        version = migration.source
        while version != API_VERSION:
            version = next(m.target for m in MIGRATIONS if m.source == version)
        assert version == API_VERSION
