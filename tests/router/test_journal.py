"""What is written down survives rotation and bad disks, and holds nothing private."""

import json
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from narwhal.control.events import Tick
from narwhal.control.snapshot import Snapshot
from narwhal.router.journal import Journal, RotatingFile, StateLine
from narwhal.router.rows import StartRow
from tests.router.harness import FakeEngine, Router, eventually, post, read_until, routing

SECRET = "sardine-4711"


def numbers(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()]


def test_files_rotate_by_size_and_only_so_many_are_kept(tmp_path: Path) -> None:
    file = RotatingFile(tmp_path / "deep" / "rows", max_bytes=40, keep=2)
    for number in range(100):
        file.write(b"%d\n" % number)
    file.close()
    names = sorted(path.name for path in (tmp_path / "deep").iterdir())
    assert names == ["rows", "rows.1", "rows.2"]
    kept = [n for name in ("rows.2", "rows.1", "rows") for n in numbers(tmp_path / "deep" / name)]
    assert kept == list(range(kept[0], 100))
    assert all((tmp_path / "deep" / name).stat().st_size <= 40 for name in names)
    assert all((tmp_path / "deep" / name).stat().st_mode & 0o777 == 0o600 for name in names)
    assert (tmp_path / "deep").stat().st_mode & 0o777 == 0o700


def test_a_file_that_is_opened_again_goes_on(tmp_path: Path) -> None:
    for number in (1, 2):
        file = RotatingFile(tmp_path / "rows", max_bytes=1000, keep=1)
        file.write(b"%d\n" % number)
        file.close()
    assert numbers(tmp_path / "rows") == [1, 2]


def test_a_disk_that_fails_costs_counted_lines_and_recovers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where the directory should be")
    journal = Journal(blocked / "journal")
    journal.event(Tick(1.0))
    journal.row(StartRow(1.0, "2026-01-01T00:00:00Z", "lab", "0"))
    eventually(lambda: journal.dropped == 2, "two dropped lines")
    assert "journal" in journal.error
    blocked.unlink()
    journal.event(Tick(2.0))
    eventually(lambda: journal.error == "", "recovery")
    journal.close()
    lines = (blocked / "journal" / "events.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"type": "LinesLost", "lines": 1}, {"type": "Tick", "t": 2.0}]
    assert journal.dropped == 2
    said = [record.getMessage() for record in caplog.records]
    assert [text.split(":")[0] for text in said] == [
        "the journal cannot be written, serving goes on without it",
        "the journal is written again; 2 lines were lost",
    ]


def test_closing_writes_what_waits(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for number in range(1000):
        journal.event(Tick(float(number)))
    journal.close()
    assert len((tmp_path / "events.jsonl").read_text().splitlines()) == 1000


def kinds(path: Path) -> list[str]:
    return [json.loads(line)["type"] for line in path.read_text().splitlines()]


class Snapshots:
    """What stands for control's state: the time of the event that follows."""

    def __init__(self, size: int = 10) -> None:
        self.size = size

    def __call__(self, t: float) -> StateLine:
        return lambda pause: Snapshot(t, "x" * self.size, {}, {})


def test_each_file_of_events_begins_with_a_snapshot_for_the_event_that_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("narwhal.router.journal.FLUSH_S", 3600.0)
    journal = Journal(tmp_path, max_bytes=2000, keep=3)
    journal.snapshot = Snapshots()
    journal.begin_events(0.0, {"type": "Settings"})
    for number in range(1000):
        journal.event(Tick(number / 100))
        if number % 10 == 0:
            journal.flush()
    journal.close()
    files = [tmp_path / f"events.jsonl{suffix}" for suffix in (".3", ".2", ".1", "")]
    ticks: list[float] = []
    for path in files:
        first, *rest = (json.loads(line) for line in path.read_text().splitlines())
        assert (first["type"], first["t"]) == ("Snapshot", rest[0]["t"])
        assert {line["type"] for line in rest} == {"Tick"}
        assert path.stat().st_size <= 2000
        ticks += [line["t"] for line in rest]
    assert ticks == [number / 100 for number in range(1000 - len(ticks), 1000)]
    assert not (tmp_path / "events.jsonl.4").exists()


def test_a_snapshot_stands_among_the_events_of_each_minute(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.snapshot = Snapshots()
    journal.begin_events(5.0, {"type": "Settings"})
    for t in (5.0, 64.9, 65.0, 66.0, 124.9, 200.0, 201.0):
        journal.event(Tick(t))
    journal.close()
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [line["t"] for line in lines if line["type"] == "Snapshot"] == [65.0, 200.0]
    assert lines[0]["type"] == "Settings"
    assert all(line["t"] == after["t"] for line, after in pairwise(lines) if line["type"] == "Snapshot")


def test_a_file_that_is_found_at_the_start_is_gone_on_with_up_to_its_limit(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text('{"type":"Tick","t":1.0}\n' * 60)
    journal = Journal(tmp_path, max_bytes=2000)
    journal.snapshot = Snapshots()
    journal.begin_events(0.0, {"type": "Settings"})
    for number in range(40):
        journal.event(Tick(float(number)))
    journal.close()
    assert "Settings" in kinds(tmp_path / "events.jsonl.1")
    assert kinds(tmp_path / "events.jsonl")[:2] == ["Snapshot", "Tick"]


def test_a_state_larger_than_a_file_does_not_make_a_file_of_each_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("narwhal.router.journal.FLUSH_S", 3600.0)
    journal = Journal(tmp_path, max_bytes=1000, keep=5)
    journal.snapshot = Snapshots(3000)
    for number in range(100):
        journal.event(Tick(number / 10))
        journal.flush()
    journal.close()
    assert not (tmp_path / "events.jsonl.2").exists()
    assert kinds(tmp_path / "events.jsonl")[:2] == ["Snapshot", "Tick"]


def test_a_state_is_written_by_the_journal_s_thread_with_pauses_and_stands_where_it_was_taken(
    tmp_path: Path,
) -> None:
    threads: list[threading.Thread] = []

    def taken(t: float) -> StateLine:
        threads.append(threading.current_thread())

        def line(pause: Callable[[], None]) -> Snapshot:
            threads.append(threading.current_thread())
            pause()
            return Snapshot(t, "", {}, {})

        return line

    journal = Journal(tmp_path)
    journal.snapshot = taken
    journal.begin_events(0.0, {"type": "Settings"})
    for t in (1.0, 60.0, 61.0):
        journal.event(Tick(t))
    journal.close()
    assert kinds(tmp_path / "events.jsonl") == ["Settings", "Tick", "Snapshot", "Tick", "Tick"]
    assert [thread.name for thread in threads] == [threading.current_thread().name, "journal"]


def test_after_a_hole_a_snapshot_comes_before_the_next_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("narwhal.router.journal.MAX_PENDING", 3)
    monkeypatch.setattr("narwhal.router.journal.FLUSH_S", 3600.0)
    journal = Journal(tmp_path)
    journal.snapshot = Snapshots()
    for number in range(5):
        journal.event(Tick(float(number)))
    assert journal.dropped == 3  # two ticks, and the snapshot that was to repair the first hole
    journal.flush()
    journal.event(Tick(5.0))
    journal.close()
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert lines[0] == {"type": "LinesLost", "lines": 3}
    assert [(line["type"], line["t"]) for line in lines[-2:]] == [("Snapshot", 5.0), ("Tick", 5.0)]


def test_a_state_that_cannot_be_written_leaves_a_hole_and_serving_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(t: float) -> StateLine:
        raise TypeError("a new kind of state")

    journal = Journal(tmp_path)
    journal.snapshot = broken
    journal.begin_events(0.0, {"type": "Settings"})
    for t in (1.0, 61.0, 62.0):
        journal.event(Tick(t))
    journal.close()
    assert kinds(tmp_path / "events.jsonl") == ["Settings", "Tick", "LinesLost", "Tick", "Tick"]
    assert "cannot be replayed from here" in caplog.text


def test_a_state_whose_line_cannot_be_made_leaves_a_hole(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def taken(t: float) -> StateLine:
        return lambda pause: object()

    journal = Journal(tmp_path)
    journal.snapshot = taken
    journal.begin_events(0.0, {"type": "Settings"})
    journal.event(Tick(61.0))
    journal.close()
    assert kinds(tmp_path / "events.jsonl") == ["Settings", "LinesLost", "Tick"]
    assert "cannot be replayed from here" in caplog.text


def everything(router: Router) -> str:
    files = [path for path in router.state_dir.rglob("*") if path.is_file()]
    assert len(files) >= 2
    return "".join(path.read_text() for path in [*files, router.log])


def test_no_prompt_no_output_no_key_is_written_down(tmp_path: Path) -> None:
    engines = [FakeEngine(), FakeEngine()]
    with routing(tmp_path, engines) as router:
        headers = {"authorization": f"Bearer {SECRET}"}
        body = {"model": "m", "prompt": SECRET, "max_tokens": 2, "user": SECRET}
        assert router.send("POST", "/v1/completions", body, headers)[0] == 200
        assert not any(SECRET in str(asked.headers) for engine in engines for asked in engine.generations)
        chat = {"model": "m", "messages": [{"role": "user", "content": SECRET}], "stream": True, "max_tokens": 2}
        assert router.send("POST", "/v1/chat/completions", chat, headers)[0] == 200
        for bad in (b'{"prompt": "%s' % SECRET.encode(), b'{"model": "%s", "prompt": "x"}' % SECRET.encode()):
            assert router.send("POST", "/v1/completions", bad, headers)[0] in (400, 404)
        sock = router.connect()
        sock.sendall(post({"prompt": "x"}, path=f"/v1/{SECRET}"))
        assert b" 404 " in read_until(sock, b"\r\n\r\n")
        eventually(lambda: len(router.rows("request")) == 2, "two rows")
    written = everything(router)
    assert '"type":"request"' in written
    assert SECRET not in written
    for engine in engines:
        engine.close()


def test_serving_goes_on_without_a_disk_and_the_router_says_so(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "journal").write_text("a file where the directory should be")
    engines = [FakeEngine(), FakeEngine()]
    with routing(tmp_path, engines) as router:
        assert router.send("POST", "/v1/completions", {"prompt": "x", "max_tokens": 2})[0] == 200
        eventually(lambda: bool(router.state()["journal"]["error"]), "a degraded journal")
        assert router.state()["journal"]["dropped_lines"] > 0
        page = router.send("GET", "/metrics", admin=True)[2].decode()
        assert "\nnarwhal_journal_degraded 1.0\n" in page
        assert router.send("POST", "/v1/completions", {"prompt": "x", "max_tokens": 2})[0] == 200
    for engine in engines:
        engine.close()
