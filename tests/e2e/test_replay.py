"""The journal of a real router, replayed: the same decisions, and an answer to what others would have done."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from narwhal.control.curves import Curves
from narwhal.dev.traffic import turning_phases
from narwhal.fleet import load_profile
from narwhal.measure import Load, Target, poisson
from tests.e2e.commands import narwhal
from tests.e2e.routers import fleet_of
from tests.router.harness import Router

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
CONTROLLER = "policy: projection, monitor_interval_s: 0.5"
SECONDS = 18.0
LEAST_FILES = 4
"""Closed and open files of events, at the smallest size that a fleet file may ask for."""


def wait_for_files(router: Router, count: int) -> None:
    """Looks and ticks alone fill the files, a few kilobytes a second."""
    folder = router.state_dir / "journal"
    asyncio.run(_until(lambda: len(list(folder.glob("events.jsonl*"))) >= count))


async def _until(met: Any) -> None:
    async with asyncio.timeout(300):
        while not met():
            await asyncio.sleep(0.1)


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What a router wrote while traffic turned twice, the controller moved engines, and an operator did."""
    folder = tmp_path_factory.mktemp("fleet")
    options = {"slo": "ttft_s: 2.0, tpot_s: 0.1", "seqs": 16, "journal_bytes": 65536, "journal_keep": 50}
    with fleet_of(folder, 4, controller=CONTROLLER, **options) as fleet:
        router = fleet.router
        phases = turning_phases(Curves.from_profile(load_profile("demo")), 4, SECONDS)
        load = Load(Target("127.0.0.1", router.port, "m"), poisson(phases, 5), seed=5)
        asyncio.run(load.run())
        assert router.send("POST", "/narwhal/hold", {"reason": "the test moves engines itself"}, admin=True)[0] == 200
        engines = {role: next(e["id"] for e in router.state()["engines"] if e["role"] == role) for role in ROLES}
        held = router.send("POST", "/narwhal/move", {"engine": engines["decode"], "role": "prefill"}, admin=True)
        assert held[0] == 409
        assert router.send("POST", "/narwhal/unhold", {}, admin=True)[0] == 200
        swap = {"a": engines["prefill"], "b": engines["decode"]}
        assert router.send("POST", "/narwhal/swap", swap, admin=True)[0] == 200
        wait_for_files(router, LEAST_FILES)
        assert router.stop() == 0
        yield router.state_dir / "journal"


ROLES = ("prefill", "decode")


def rows(journal: Path, kind: str) -> list[Any]:
    lines = [line for path in journal.glob("journal.jsonl*") for line in path.read_text().splitlines()]
    return [row for row in map(json.loads, lines) if row["type"] == kind]


def test_a_ring_that_holds_the_start_replays_to_the_same_decisions_and_states(journal: Path) -> None:
    result = narwhal("simulate", "--replay", str(journal), home=journal)
    data = result["data"]
    assert (result["status"], data["differences"]) == ("success", [])
    assert not data["begins_in_the_middle"]
    assert data["decisions"] == len(rows(journal, "decision"))
    assert data["snapshots"] >= LEAST_FILES - 1
    made = {row["decision"]["outcome"] for row in rows(journal, "decision")}
    assert {"moved", "held", "stay"} <= made
    assert len([row for row in rows(journal, "engine") if row["change"] == "moved"]) >= 3


def test_any_retained_file_replays_by_itself_and_says_where_it_begins(journal: Path) -> None:
    files = sorted(journal.glob("events.jsonl*"))
    oldest = max(files, key=lambda path: int(path.suffix[1:] or 0) if path.suffix != ".jsonl" else 0)
    decisions = 0
    for path in files:
        data = narwhal("simulate", "--replay", str(path), home=journal)["data"]
        assert data["differences"] == []
        assert data["begins_in_the_middle"] == (path != oldest)
        decisions += data["decisions"]
    assert decisions == len(rows(journal, "decision"))


def test_other_policies_and_splits_answer_for_a_ring_that_begins_in_the_middle(journal: Path, tmp_path: Path) -> None:
    files = sorted(journal.glob("events.jsonl.*"), key=lambda path: int(path.suffix[1:]))
    kept = tmp_path / "journal"
    kept.mkdir()
    for path in [*files[:-1], journal / "events.jsonl", *journal.glob("journal.jsonl*")]:
        (kept / path.name).write_bytes(path.read_bytes())
    again = narwhal("simulate", "--replay", str(kept), home=tmp_path)
    assert (again["status"], again["data"]["begins_in_the_middle"]) == ("success", True)
    policies = ["static:1p3d", "static:3p1d", "reactive"]
    asked = ["--replay", str(kept), "--policy", ",".join(policies), "--seeds", "1"]
    other = narwhal("simulate", *asked, home=tmp_path)
    assert other["status"] == "success"
    assert other["data"]["run"]["engines"] == 4
    assert other["data"]["run"]["rate_rps"] > 1
    assert list(other["data"]["policies"]) == policies
    assert other["data"]["policies"]["static:1p3d"]["moves"] == 0
