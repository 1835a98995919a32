import json
from pathlib import Path

import msgspec
import pytest

from narwhal.cli.verbs import run_app
from narwhal.control import Control
from narwhal.control.commands import AnyCommand, Decided
from narwhal.control.events import AnyEvent
from narwhal.control.snapshot import Snapshot, as_read
from narwhal.simulate.policies import parse_policy
from narwhal.simulate.prepare import Ask, prepare
from narwhal.simulate.recording import ReplayError
from narwhal.simulate.replay import replay, settings_document
from narwhal.simulate.simulation import Simulation


def record(path: Path, *, snapshots: int = 0) -> int:
    """Write the events and decisions of a simulated run; returns the number of decisions.

    `snapshots`: after so many events each a snapshot is written.
    """
    ask = Ask(mix="turning:code,reas:20", seconds=60, curves="8b-h100", engines=4, split="2p2d", admission="open")
    scenario = prepare(ask).scenario
    lines: list[bytes] = []
    before: list[Snapshot] = []
    decisions = events = 0

    def listen(event: AnyEvent, commands: list[AnyCommand]) -> None:
        nonlocal decisions, events
        if snapshots and events % snapshots == 0 and events:
            lines.append(msgspec.json.encode(before[0]))
        lines.append(msgspec.json.encode(event))
        events += 1
        for command in commands:
            if isinstance(command, Decided):
                decisions += 1
                lines.append(msgspec.json.encode(command))

    policy = parse_policy("projection")
    settings = policy.settings(scenario.settings)
    control = Control.handle

    def handle(self: Control, event: AnyEvent) -> list[AnyCommand]:
        if snapshots and events % snapshots == 0:
            before[:] = [Snapshot(event.t, "test", self.settings.document(), as_read(self))]
        return control(self, event)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Control, "handle", handle)
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


def split_at_snapshots(path: Path) -> list[list[str]]:
    """The lines of a recording, each part but the first with a snapshot at its head."""
    parts: list[list[str]] = [[]]
    for line in path.read_text().splitlines():
        if '"type":"Snapshot"' in line:
            parts.append([])
        parts[-1].append(line)
    return parts


def write_ring(folder: Path, parts: list[list[str]]) -> None:
    """Write files as rotation leaves them: the newest without a number."""
    folder.mkdir()
    for age, part in enumerate(reversed(parts)):
        suffix = f".{age}" if age else ""
        (folder / f"events.jsonl{suffix}").write_text("\n".join(part) + "\n")


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    path = tmp_path_factory.mktemp("recording") / "events.jsonl"
    record(path, snapshots=400)
    found = split_at_snapshots(path)
    assert len(found) > 10
    return found


def decided(parts: list[list[str]]) -> int:
    return sum('"Decided"' in line for part in parts for line in part)


def test_a_ring_of_files_is_one_recording(parts: list[list[str]], tmp_path: Path) -> None:
    write_ring(tmp_path / "j", parts)
    report = replay(tmp_path / "j")
    assert (report.begins_t, report.different, report.differences) == (None, 0, [])
    assert (report.decisions, report.snapshots) == (decided(parts), len(parts) - 1)


def test_a_ring_whose_start_is_gone_begins_with_its_oldest_snapshot(
    parts: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_ring(tmp_path / "j", parts[4:])
    report = replay(tmp_path / "j")
    assert report.begins_t == json.loads(parts[4][0])["t"]
    assert (report.decisions, report.different) == (decided(parts[4:]), 0)
    assert run_app(["simulate", "--replay", str(tmp_path / "j")]) == 0
    assert capsys.readouterr().out.startswith("begins in the middle, at ")


def test_others_serve_what_is_left_of_the_requests(
    parts: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_ring(tmp_path / "j", parts[1:])
    arguments = ["simulate", "--replay", str(tmp_path / "j"), "--policy", "static:1p3d,reactive", "--seeds", "1"]
    assert run_app([*arguments, "--format", "json"]) == 0
    policies = json.loads(capsys.readouterr().out)["data"]["policies"]
    left = sum('"RequestArrived"' in line for part in parts[1:] for line in part)
    for figures in policies.values():
        assert 0 < figures["offered"] < left
        assert 0 <= figures["attainment"] <= 1
    assert policies["static:1p3d"]["attainment"] < policies["reactive"]["attainment"]


def test_after_a_hole_the_replay_goes_on_with_the_next_snapshot(parts: list[list[str]], tmp_path: Path) -> None:
    torn = [*parts[:3], [*parts[3][:100], '{"type":"LinesLost","lines":77}', *parts[3][200:]], *parts[4:]]
    write_ring(tmp_path / "j", [[line for line in part if '"Decided"' not in line] for part in torn])
    report = replay(tmp_path / "j")
    assert (report.lost_lines, report.different) == (77, 0)
    assert report.snapshots == len(parts) - 2
    assert "77 lines were never written" in report.text()


def test_a_state_that_is_not_the_recorded_one_is_shown_once(parts: list[list[str]], tmp_path: Path) -> None:
    without = [line for line in parts[3] if '"Tick"' not in line]
    write_ring(
        tmp_path / "j",
        [[line for line in part if '"Decided"' not in line] for part in [*parts[:3], without, *parts[4:]]],
    )
    report = replay(tmp_path / "j")
    assert report.different == 1
    assert "is not that of the snapshot at" in report.differences[0]
    assert "events.jsonl." in report.differences[0]


def test_a_decision_that_was_not_recorded_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    record(path)
    lines = path.read_text().splitlines()
    places = [n for n, line in enumerate(lines) if '"Decided"' in line]
    del lines[places[1]]
    path.write_text("\n".join(lines))
    report = replay(path)
    assert report.different == 1
    assert "was not recorded" in report.differences[0]


def test_a_snapshot_that_cannot_be_read_names_who_wrote_it(parts: list[list[str]], tmp_path: Path) -> None:
    head = json.loads(parts[4][0])
    head["state"]["fields"]["Engine"].append("colour")
    write_ring(tmp_path / "j", [[json.dumps(head), *parts[4][1:]]])
    with pytest.raises(ReplayError, match=r"events\.jsonl:1: the snapshot, of narwhal test, cannot be read"):
        replay(tmp_path / "j")


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
