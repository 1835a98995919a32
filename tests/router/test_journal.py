"""What is written down survives rotation and bad disks, and holds nothing private."""

import json
from pathlib import Path

import pytest

from narwhal.control.events import Tick
from narwhal.router.journal import Journal, RotatingFile
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
    assert [json.loads(line)["t"] for line in (blocked / "journal" / "events.jsonl").read_text().splitlines()] == [2.0]
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
    (tmp_path / "state").write_text("a file where the directory should be")
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
