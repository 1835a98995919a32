"""A real Prometheus and Alertmanager on a fleet that serves: alerts fire and clear, dashboards have series."""

import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from narwhal.drills.drill import Drill, Figures, drill, eventually, expect
from narwhal.drills.fleet import Fleet
from narwhal.drills.plan import Plan
from narwhal.drills.run import run_drills
from narwhal.observe import Running, run
from narwhal.observe.panels import PAGES
from tests.e2e.routers import fleet_of
from tests.observe.asking import Labels, among, hurried, query, told

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600), pytest.mark.usefixtures("programs")]
FIRES_S = 120.0
"""How soon an alert is to fire, in seconds."""
PATIENCE_S = 200.0


@drill(
    "alerts",
    plan=Plan(
        engines=5,
        prefill=3,
        apart="engines",
        speed=1.0,
        seats=8,
        slo={"ttft_s": 0.5, "tpot_s": 1.0},
        serving={"deadlines": {"first_token_s": 4}},
        recovery={"link_retry_s": 2, "readmit_backoff_s": 0.5},
        controller={"min_prefill": 3, "min_decode": 1},
    ),
)
def alerts(fleet: Fleet) -> Figures:
    """An engine killed, a role starved by it, a pair cut, and more asked than can be served.

    Each fires its alert with the right labels, and clears.

    Prometheus looks each second. While all is well nothing is told. Then all happens at once, with moves on hold.
    """
    network, router, victim = fleet.network, fleet.primary, fleet.of_role("prefill")[0]
    producer, consumer = fleet.of_role("prefill")[1], fleet.of_role("decode")[0]
    assert network is not None
    wanted = {
        "ejected_s": {"alertname": "NarwhalEngineEjected", "engine": victim.id, "severity": "page"},
        "starved_s": {"alertname": "NarwhalFloorBreached", "role": "prefill", "severity": "page"},
        "cut_s": {"alertname": "NarwhalPairOut", "producer": producer.id, "consumer": consumer.id},
        "overload_s": {"alertname": "NarwhalSaturated", "severity": "page"},
    }
    folder = fleet.folder / "observe"
    folder.mkdir()
    with run(hurried(fleet.expanded), folder) as running, fleet.clients(2, pause_s=0.2):
        eventually(lambda: all_up(running, len(fleet.engines)), "a look at every target")
        for expr in ("narwhal:missed:ratio_rate5m", "narwhal_split_score"):
            eventually(lambda e=expr: bool(query(running, e)), expr)  # type: ignore[misc]
        expect(not told(running), f"told while all was well: {told(running)}")
        lacking = without_series(running, expressions())
        router.order("hold", reason="a test")
        network.cut(producer.spec.address, consumer.spec.address)
        victim.process.kill()
        with fleet.clients(40, tokens=64, pause_s=0.02):
            figures = all_told(running, wanted)
            all_have_series(running, lacking)
        network.mend(producer.spec.address, consumer.spec.address)
        victim.start()
        router.order("unhold")
        cleared = lambda: not any(among(labels, told(running)) for labels in wanted.values())  # noqa: E731
        figures["clear_s"] = eventually(cleared, "the end of all alerts", patience_s=PATIENCE_S)
    return figures


@drill("standby-alerts", plan=Plan(engines=2, prefill=1, standby=True))
def standby_alerts(fleet: Fleet) -> Figures:
    """The standby killed.

    While it follows nothing is told, of what it says of roles and engines neither; then that it is down, and is missed.

    Both routers are on this machine, and each tells Prometheus of both.
    """
    wanted = {
        "down_s": {"alertname": "NarwhalRouterDown", "router": "standby"},
        "missing_s": {"alertname": "NarwhalStandbyMissing", "router": "primary"},
    }
    folder = fleet.folder / "observe"
    folder.mkdir()
    with run(hurried(fleet.expanded), folder) as running, fleet.clients(2, pause_s=0.2):
        eventually(lambda: all_up(running, len(fleet.engines), routers=2), "a look at every target")
        leads = {found["metric"]["router"]: found["value"][1] for found in query(running, "narwhal_lease_leads")}
        expect(leads == {"primary": "1", "standby": "0"}, f"who leads: {leads}")
        fleet.standby.process.kill()
        expect(not told(running), f"told while all was well: {told(running)}")
        figures = all_told(running, wanted)
        strange = [labels for labels in told(running) if not any(w.items() <= labels.items() for w in wanted.values())]
        expect(not strange, f"told too: {strange}")
        fleet.standby.process.start()
        cleared = lambda: not told(running)  # noqa: E731
        figures["clear_s"] = eventually(cleared, "the end of all alerts", patience_s=PATIENCE_S)
    return figures


def all_up(running: Running, engines: int, *, routers: int = 1) -> bool:
    """Whether every target is scraped."""
    up = query(running, "up == 1")
    return sum("engine" in found["metric"] for found in up) == engines and len(up) == engines + routers


def all_told(running: Running, wanted: dict[str, Labels]) -> Figures:
    """Wait for alerts, one after the other; within how many seconds each had come."""
    figures: Figures = {}
    began_t = time.monotonic()
    for name, labels in wanted.items():
        left_s = FIRES_S - (time.monotonic() - began_t)
        eventually(partial(is_told, running, labels | {"fleet": "drill"}), f"the alert {labels}", patience_s=left_s)
        figures[name] = time.monotonic() - began_t
    return figures


def is_told(running: Running, labels: Labels) -> bool:
    """Whether an alert with these labels is told."""
    return among(labels, told(running))


def expressions() -> set[str]:
    """The queries of all dashboards."""
    return {query.expr for page in PAGES for row in page.rows for panel in row.panels for query in panel.queries}


def without_series(running: Running, exprs: set[str]) -> set[str]:
    """Those of them that come to nothing now."""
    asked = {expr: expr.replace("$fleet", "drill").replace("$engine", ".*") for expr in exprs}
    return {expr for expr, filled in asked.items() if not query(running, filled)}


def all_have_series(running: Running, lacking: set[str]) -> None:
    """Wait until each of these has had series at some time."""

    def none() -> bool:
        lacking.intersection_update(without_series(running, lacking))
        return not lacking

    try:
        eventually(none, "series for every query")
    finally:
        expect(not lacking, f"without series: {sorted(lacking)}")


@pytest.mark.parametrize("drilled", [alerts, standby_alerts], ids=lambda drilled: drilled.name)
def test_what_goes_wrong_is_told_and_what_is_over_is_not(drilled: Drill, tmp_path: Path) -> None:
    [done] = run_drills([drilled], print, where=tmp_path)
    assert done.outcome == "passed", f"{done.reason}; {done.kept}"


def test_observe_up_runs_beside_a_router_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    with fleet_of(tmp_path, 2) as fleet:
        argv = [sys.executable, "-m", "narwhal", "observe", "up", str(tmp_path / "fleet.yaml")]
        log = tmp_path / "up.log"
        with log.open("wb") as out:
            process = subprocess.Popen(argv, stdout=out, stderr=out)
        try:
            eventually(lambda: "Ctrl-C" in log.read_text() or process.poll() is not None, "its start")
            found = re.search(r"prometheus +(\S+)", log.read_text())
            assert found is not None, log.read_text()
            running = Running(found[1], None, tmp_path / "observe", ())
            eventually(lambda: all_up(running, 2), "a look at every target")
            live = {series["metric"]["engine"] for series in query(running, "narwhal_engine_live == 1")}
            assert live == {engine.id for engine in fleet.expanded.engines}
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
        finally:
            process.kill()
            process.wait()
        with pytest.raises(OSError):
            query(running, "up")
        assert (tmp_path / "observe/grafana/narwhal-ops.json").is_file()
