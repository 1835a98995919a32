import json
from pathlib import Path

import msgspec
import pytest

from narwhal.cli.verbs import run_app
from narwhal.control.commands import AnyCommand, Decided
from narwhal.control.events import AnyEvent
from narwhal.simulate.policies import parse_policy
from narwhal.simulate.prepare import Ask, prepare
from narwhal.simulate.replay import ReplayError, replay, settings_document
from narwhal.simulate.simulation import Simulation


def record(path: Path) -> int:
    """Write the events and decisions of a simulated run; returns the number of decisions."""
    ask = Ask(mix="turning:code,reas:20", seconds=60, curves="8b-h100", engines=4, split="2p2d", admission="open")
    scenario = prepare(ask).scenario
    lines: list[bytes] = []
    decisions = 0

    def listen(event: AnyEvent, commands: list[AnyCommand]) -> None:
        nonlocal decisions
        lines.append(msgspec.json.encode(event))
        for command in commands:
            if isinstance(command, Decided):
                decisions += 1
                lines.append(msgspec.json.encode(command))

    policy = parse_policy("projection")
    settings = policy.settings(scenario.settings)
    Simulation(scenario.engines, settings, scenario.traffic(14.0, 3), listener=listen).run()
    path.write_bytes(b"\n".join([json.dumps(settings_document(settings)).encode(), *lines]))
    return decisions


def test_the_same_events_give_the_same_decisions(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    decisions = record(path)
    report = replay(path)
    assert decisions > 0
    assert (report.decisions, report.different) == (decisions, 0)


def test_a_decision_that_would_not_be_made_again_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    record(path)
    lines = path.read_text().splitlines()
    place = next(n for n, line in enumerate(lines) if '"Decided"' in line)
    lines[place] = lines[place].replace('"outcome":"', '"outcome":"un')
    path.write_text("\n".join(lines))
    report = replay(path)
    assert report.different == 1
    assert "now" in report.differences[0]


def test_other_policies_serve_the_recorded_requests_on_the_recorded_engines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "events.jsonl"
    record(path)
    arguments = ["simulate", "--replay", str(path), "--policy", "static,reactive", "--seeds", "1", "--format", "json"]
    assert run_app(arguments) == 0
    data = json.loads(capsys.readouterr().out)["data"]
    assert data["run"]["engines"] == 4
    assert set(data["policies"]) == {"static", "reactive"}


def test_decisions_are_looked_up_in_the_journal_beside_the_events(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    decisions = record(path)
    lines = path.read_text().splitlines()
    rows = [json.loads(line) for line in lines if '"Decided"' in line]
    path.write_text("\n".join(line for line in lines if '"Decided"' not in line))
    start = {"type": "start", "t": 0.0}
    made = [{"type": "decision", "decision": row["decision"]} for row in rows]
    (tmp_path / "journal.jsonl").write_text("\n".join(json.dumps(row) for row in [start, *made[:3], start, *made]))
    report = replay(tmp_path)
    assert (report.decisions, report.different) == (decisions, 0)


@pytest.mark.parametrize("text", ["", "{}\n", "not json\n", '{"type":"Tick"}\n'])
def test_what_is_no_recording_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(text)
    with pytest.raises(ReplayError, match=r"events\.jsonl:1: "):
        replay(path)
