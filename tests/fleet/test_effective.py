"""What is in effect, and where each value comes from."""

from narwhal.fleet import check_text
from narwhal.fleet.effective import effective, effective_text
from tests.fleet.fleets import BASE


def test_every_value_says_where_it_comes_from() -> None:
    values = {v.field: (v.value, v.origin) for v in effective(check_text(BASE, "fleet.yaml"))}
    assert values["slo.tpot_s"] == (0.05, "fleet.yaml:7")
    assert values["hosts[1].fabric.address"] == ("10.1.0.2", "fleet.yaml:13")
    assert values['engines.overrides["gpu-1/0"].pin'] == ("prefill", "fleet.yaml:29")
    assert values["serving.margin"] == (0.0, "default")
    assert values["recovery.eject_after"] == (3, "default")
    assert values["routers.tenants[0].keys[0].file"] == ("/keys/a", "fleet.yaml:53")


def test_the_table_has_a_line_for_each_value() -> None:
    values = effective(check_text(BASE, "fleet.yaml"))
    lines = effective_text(values).splitlines()
    assert len(lines) == len(values)
    assert all(line.rstrip().endswith(v.origin) for line, v in zip(lines, values, strict=True))
