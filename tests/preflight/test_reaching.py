"""What goes to engines and what comes back, with engines that answer as a test says."""

import asyncio
import json
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from narwhal.fleet import open_fleet
from narwhal.preflight import Preflight, Wish, preflight, save_preflight
from narwhal.preflight.document import Name
from narwhal.profiling import EngineError
from tests.router.certificates import Pair, authority, issue
from tests.router.harness import Asked, FakeEngine, reply, write_fleet

KEY = "an-engine-key-0123456789"


def small(asked: Asked, sock: socket.socket) -> None:
    """Answers to /version, and completions of one text."""
    reply(sock, {"version": "1.2"} if asked.path == "/version" else {"choices": [{"index": 0, "text": "x"}]})


@pytest.fixture
def engines() -> Iterator[list[FakeEngine]]:
    found = [FakeEngine(), FakeEngine()]
    for engine in found:
        engine.whole = small
    yield found
    for engine in found:
        engine.close()


def run(path: Path, *only: Name) -> Preflight:
    wish = Wish(open_fleet(path), path, path.parent / "profiles", only, timeout_s=60.0)
    return asyncio.run(preflight(wish, lambda text: None))


def statuses(document: Preflight) -> dict[tuple[str, str], str]:
    return {(one.name, one.subject): one.status for one in document.checks}


def test_an_engine_that_is_not_well_is_named_with_its_status(engines: list[FakeEngine], tmp_path: Path) -> None:
    engines[1].healthy = False
    path, _, _ = write_fleet(tmp_path, [engine.port for engine in engines])
    document = run(path, "reach")
    assert statuses(document) == {("reach", "local/0"): "ok", ("reach", "local/1"): "FAIL"}
    failed = document.checks[1]
    assert "status 503" in failed.reason
    assert "127.0.0.1" not in document.model_dump_json(), "evidence tells no addresses"
    assert failed.next_step


def test_a_leg_1_without_a_handoff_is_the_producer_s_failure(engines: list[FakeEngine], tmp_path: Path) -> None:
    engines[0].leg_1 = lambda asked, sock: reply(sock, {"choices": [], "kv_transfer_params": None})
    engines[1].leg_1 = lambda asked, sock: reply(sock, {"error": {"message": "no"}}, 500)
    path, _, _ = write_fleet(tmp_path, [engine.port for engine in engines])
    document = run(path, "produce", "consume", "deadline")
    seen = statuses(document)
    assert [seen["produce", engine] for engine in ("local/0", "local/1")] == ["FAIL", "FAIL"]
    assert seen["consume", "local/0 > local/1"] == seen["consume", "local/1 > local/0"] == "SKIP"
    assert seen["deadline", "fleet"] == "SKIP"
    reasons = {one.subject: one.reason for one in document.checks if one.name == "produce"}
    assert "names no handoff" in reasons["local/0"]
    assert "status 500" in reasons["local/1"]
    assert document.verdict == "FAIL"


def test_evidence_is_a_file_for_each_run(engines: list[FakeEngine], tmp_path: Path) -> None:
    path, _, _ = write_fleet(tmp_path, [engine.port for engine in engines])
    files = {save_preflight(tmp_path / "evidence", run(path, "reach")) for _ in range(2)}
    assert len(files) == 2
    assert all(json.loads(file.read_text())["kind"] == "Preflight" for file in files)


def test_engines_are_asked_with_their_key_over_tls(tmp_path: Path) -> None:
    ca = authority(tmp_path, "engines-ca")
    names = "subjectAltName=DNS:engines.example.org"
    pair = issue(ca, Pair(tmp_path / "engine.pem", tmp_path / "engine.key"), names=names)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert, pair.key)
    engine, key = FakeEngine(tls=context), tmp_path / "api.key"
    engine.whole = small
    key.write_text(KEY)
    key.chmod(0o600)
    more = f"\n  api_key: {{file: {key}}}\n  tls: {{ca: {ca.cert}, server_name: engines.example.org}}"
    try:
        path, _, _ = write_fleet(tmp_path, [engine.port], engine_scheme="https", engine_more=more, prefill=1)
        document = run(path, "reach", "contract")
        assert set(statuses(document).values()) == {"ok"}, document.checks
        assert engine.looked is not None
        assert engine.looked.headers["authorization"] == f"Bearer {KEY}"
        assert KEY not in document.model_dump_json()
        key.unlink()
        with pytest.raises(EngineError, match=r"engines\.api_key"):
            run(path, "reach")
    finally:
        engine.close()
