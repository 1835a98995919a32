"""Copying a model from host to host: what is given, what is fetched, and where a copy that broke off goes on."""

import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.playbooks.loading import load

share = load("roles", "distribute", "files", "share.py")
fetch = load("roles", "distribute", "files", "fetch.py")
digest = load("roles", "discover", "files", "digest.py")
TOKEN = "a-token"
FILES = {"config.json": b"{}", "sub/weights 1": b"w" * 300_000, "sub/weights 2": b"w" * 300_000}


@pytest.fixture
def order(tmp_path: Path) -> Iterator[dict[str, Any]]:
    source = tmp_path / "source"
    for name, data in FILES.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(data)
    files = digest.digest(str(source), "", 60, manifest=True)["manifest"]
    share.Handler.order = {"token": TOKEN, "folder": str(source), "files": files}
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), share.Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        target = tmp_path / "target"
        place = {"host": "127.0.0.1", "port": server.server_address[1]}
        yield {**place, "token": TOKEN, "folder": str(target), "files": files}
        server.shutdown()


def copied(order: dict[str, Any]) -> dict[str, bytes]:
    folder = Path(order["folder"])
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_every_file_arrives_and_nothing_else_is_left(order: dict[str, Any]) -> None:
    assert fetch.fetch(order, 60) == {"complete": True, "progress": "copied"}
    assert copied(order) == FILES
    assert not (Path(order["folder"]) / ".cache").exists()


def test_a_copy_that_broke_off_goes_on_at_the_byte_where_it_stopped(
    order: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fetch.fetch(order, -1)["complete"] is False
    parts = Path(order["folder"]) / ".cache" / "narwhal"
    entry = order["files"][1]
    Path(fetch.part(str(parts), entry)).write_bytes(FILES[entry[0]][:100_000])
    asked: list[int] = []
    real = fetch.receive
    monkeypatch.setattr(fetch, "receive", lambda *a: asked.append(a[3].tell()) or real(*a))
    assert fetch.fetch({**order, "token": TOKEN}, 60)["complete"]
    assert asked == [0, 100_000, 0]
    assert copied(order) == FILES


def test_a_file_in_its_place_by_this_run_is_not_fetched_again(
    order: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fetch.fetch_file
    monkeypatch.setattr(fetch, "fetch_file", lambda *a: a[4][0] == "config.json" and real(*a))
    said = fetch.fetch(order, 60)
    assert (said["complete"], said["progress"]) == (False, "copied 0.0 of 0.0 GB")
    fetched: list[str] = []
    monkeypatch.setattr(fetch, "fetch_file", lambda *a: fetched.append(a[4][0]) or real(*a))
    assert fetch.fetch(order, 60)["complete"]
    assert fetched == ["sub/weights 1", "sub/weights 2"]


def test_bytes_that_are_wrong_are_not_put_in_place(order: dict[str, Any]) -> None:
    path, size, _ = order["files"][0]
    order["files"] = [[path, size, hashlib.sha256(b"other").hexdigest()]]
    with pytest.raises(fetch.CopyError, match="arrived with another SHA-256"):
        fetch.fetch(order, 60)
    assert copied(order) == {}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"token": "another"}, "config.json is refused with 403"),
        ({"files": [["secret", 1, "00"]]}, "secret is refused with 404"),
        ({"files": [["../up", 1, "00"]]}, "outside of the model"),
        ({"files": [["config.json", 1 << 60, "00"]]}, "are free; make room"),
    ],
)
def test_what_cannot_be_copied_is_said(
    order: dict[str, Any], change: dict[str, Any], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "order.json"
    file.write_text(json.dumps(order | change))
    fetch.main([str(file)])
    answer = json.loads(capsys.readouterr().out)
    assert answer["complete"]
    assert said in answer["problem"]


def test_nobody_gives_anything(order: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), share.Handler) as server:
        port = server.server_address[1]
    file = tmp_path / "order.json"
    file.write_text(json.dumps(order | {"port": port}))
    fetch.main([str(file)])
    assert "the copy broke off" in json.loads(capsys.readouterr().out)["problem"]
