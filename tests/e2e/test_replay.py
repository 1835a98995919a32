"""The journal of a real router, replayed: the same decisions, and an answer to what others would have done."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from narwhal.control import Settings
from narwhal.control.curves import Curves
from narwhal.control.projection import LEAST_SCORE
from narwhal.dev.traffic import turning_phases
from narwhal.diagnose.document import AskedGate
from narwhal.diagnose.life import why_request
from narwhal.diagnose.why import from_journal, why_move
from narwhal.fleet import load_profile
from narwhal.measure import Load, Target, poisson
from narwhal.simulate.recording import read_recording
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


def test_why_explains_every_move_and_all_that_was_held_with_the_numbers_of_their_records(journal: Path) -> None:
    settings = read_recording(journal).settings
    asked = [row["decision"] for row in rows(journal, "decision") if row["decision"]["outcome"] in ("moved", "held")]
    outcomes = [decision["outcome"] for decision in asked]
    assert outcomes.count("moved") >= 3
    assert outcomes.count("held") >= 3
    for decision in asked:
        told = from_journal(journal)
        (explained,) = why_move(told, decision["id"]).document.explained
        assert [gate.passed for gate in explained.gates] == [
            _passes(gate, decision, settings) for gate in explained.gates
        ]
        recorded = [(guard["name"], guard["value"], guard["limit"], guard["engine"]) for guard in decision["guards"]]
        assert [(gate.gate, gate.value, gate.limit, gate.engine) for gate in explained.gates] == recorded
        now = decision["candidates"][0]["score"] if decision["candidates"] else 0.0
        for split, candidate in zip(explained.candidates, decision["candidates"], strict=True):
            assert split.gain == now - candidate["score"]
        verdicts = [split.verdict for split in explained.candidates]
        assert verdicts.count(explained.outcome) == (1 if verdicts and decision["moves"] else 0)
        assert explained.moves == [f"{m['engine']} {m['source']} → {m['target']}" for m in decision["moves"]]


def _passes(gate: AskedGate, decision: Any, settings: Settings) -> bool:
    """Whether a gate passes, from its number and what the settings say it is compared with."""
    controller, thresholds = settings.controller, settings.controller.thresholds
    projection, value = controller.projection, gate.value
    limits = {
        "min_prefill": controller.min_prefill,
        "min_decode": controller.min_decode,
        "dwell_s": thresholds.dwell_s,
        "cooldown_s": thresholds.cooldown_s,
        "expand_at": projection.expand_at,
        "shrink_at": projection.shrink_at,
        "min_arrivals": projection.min_arrivals,
    }
    if gate.gate in limits:
        waits = gate.gate == "min_arrivals" and decision["inputs"]["prefill_age"] >= 1
        return value >= limits[gate.gate] or waits
    if gate.gate == "gain":
        score = decision["candidates"][0]["score"]
        need = max(projection.gain * max(score, LEAST_SCORE), projection.gain_calm if score < 1 else 0.0)
        assert gate.limit in (need, 2 * need), "twice for a reversal"
        return value >= gate.limit
    if gate.gate == "confirmations":
        return value >= gate.limit
    if gate.gate == "flip_resident_guard":
        return thresholds.flip_resident_guard == 0 or value <= thresholds.flip_resident_guard
    assert gate.gate in ("hold", "advisory", "pin", "lifecycle", "moving"), gate.gate
    return value == 0.0


def test_why_tells_a_request_s_life_as_its_row_has_it(journal: Path) -> None:
    requests = rows(journal, "request")
    for row in [
        *requests[:: max(len(requests) // 6, 1)],
        *[row for row in requests if row["outcome"] == "refused"][:2],
    ]:
        life = why_request(from_journal(journal, row["id"]), row["id"]).document.request
        assert life is not None
        assert life.complete
        assert (life.request, life.outcome) == (row["request"], row["outcome"])
        engines = {step.what: step.engine for step in life.steps}
        assert engines.get("prefill", "") == row["prefill_engine"] or "whole" in engines
        assert (engines.get("decode") or engines.get("whole") or "") == row["decode_engine"]
        if row["prefilled_s"] is not None:
            (done,) = [step for step in life.steps if step.what == "prefilled"]
            assert done.at_s == pytest.approx(row["prefilled_s"], abs=1e-6)
        if life.price_s is not None and life.limit_s is not None:
            assert life.price_s <= life.limit_s
        if row["outcome"] == "refused":
            assert f"429 {row['code']}: " in life.steps[-1].words
