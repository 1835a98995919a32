"""Who a running engine is: the handshake, the process, the sidecar."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from narwhal.dev.ports import free_run
from narwhal.documents import problems
from narwhal.engine import process
from narwhal.engine.nixl import HandshakeError, parse_answer, shake_hands
from narwhal.engine.record import EngineLaunch, write_launch
from tests.engine.test_render import launch_of

PATIENCE_S = 120.0
AGENT = {
    "engine_id": "id-1",
    "agent_metadata": b"opaque",
    "num_blocks": 68,
    "block_lens": [32768, 32768],
    "kv_cache_layout": "LBHNC",
    "block_size": 32,
    "attn_backend_name": "CPU_ATTN",
}
PAYLOAD = msgspec.msgpack.encode(
    {"compatibility_hash": "c0ffee", "agent_metadata_bytes": msgspec.msgpack.encode(AGENT)}
)


class SideChannel:
    """A ZeroMQ router of one conversation, byte by byte as ZMTP 3.0 has it, and what it was asked."""

    def __init__(self, answer: bytes) -> None:
        self.asked: list[Any] = []
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        sock, _ = self._listener.accept()
        with sock, sock.makefile("rb") as stream:
            stream.read(64)
            sock.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\x00") + bytes(32))
            stream.read(stream.read(2)[1])
            ready = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06ROUTER"
            sock.sendall(bytes([4, len(ready)]) + ready)
            stream.read(2)
            self.asked += msgspec.msgpack.decode(stream.read(stream.read(2)[1]))
            clock = msgspec.msgpack.encode(1.5)
            long = b"\x03" + len(self._answer).to_bytes(8, "big") + self._answer
            sock.sendall(b"\x01\x00" + long + bytes([0, len(clock)]) + clock)


def test_the_handshake_is_one_question_and_one_answer() -> None:
    channel = SideChannel(PAYLOAD)
    found = shake_hands("127.0.0.1", channel.port, "0.32.0")
    assert (found.engine_id, found.compatibility_hash, found.attention) == ("id-1", "c0ffee", "CPU_ATTN")
    assert found.block_bytes // found.block_tokens == 2048
    assert channel.asked == [b"get_meta_msg", 0, 0]


@pytest.mark.parametrize("version", ["0.26.0", "0.33.0", ""])
def test_an_engine_is_not_asked_in_a_form_that_could_end_its_listener(version: str) -> None:
    with pytest.raises(HandshakeError, match="is not known"):
        shake_hands("127.0.0.1", 9, version)


def test_an_answer_that_is_none_is_an_error() -> None:
    channel = SideChannel(msgspec.msgpack.encode({"other": 1}))
    with pytest.raises(HandshakeError, match="not one that is known"):
        shake_hands("127.0.0.1", channel.port, "0.32.0")
    with pytest.raises(HandshakeError):
        parse_answer([b""])


def test_a_side_channel_that_is_not_there_is_an_error() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        with pytest.raises(HandshakeError, match="does not answer"):
            shake_hands("127.0.0.1", closed.getsockname()[1], "0.32.0", timeout_s=1)


def test_the_listener_of_a_port_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert process.listener(port) == os.getpid()
    assert process.listener(port) is None
    ticks = process.start_ticks(os.getpid())
    assert ticks is not None
    assert 0 <= time.time() - process.started_at_s(ticks) < 86400
    assert process.executable(os.getpid()) == os.path.realpath(sys.executable)


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[tuple[EngineLaunch, Path, "subprocess.Popen[bytes]"]]:
    """A simulated engine that `narwhal engine run` became, and its launch record."""
    found = launch_of(tmp_path, "{kind: simulated}")
    first = free_run(2)
    argv = [*found.argv]
    argv[argv.index("--port") + 1], argv[argv.index("--side-channel-port") + 1] = str(first), str(first + 1)
    for name in ("--block-size", "--enable-prefix-caching"):  # vLLM's alone
        if name in argv:
            del argv[argv.index(name) : argv.index(name) + 2]
    found = found.model_copy(
        update={"argv": argv, "port": first, "side_channel_port": first + 1, "secrets": {}, "environment": {}}
    )
    path = tmp_path / "launch.json"
    write_launch(found, path)
    command = [sys.executable, "-m", "narwhal", "engine", "run", "--launch", str(path)]
    with (tmp_path / "engine.log").open("wb") as log:
        started = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        eventually(lambda: get(first, "/health")[0] == 200, lambda: (tmp_path / "engine.log").read_text())
        yield found, path, started
    finally:
        started.kill()
        started.wait()


@pytest.mark.e2e
def test_the_sidecar_tells_who_the_engine_is_and_stays_small(
    launch: tuple[EngineLaunch, Path, "subprocess.Popen[bytes]"], tmp_path: Path
) -> None:
    record, path, engine = launch
    command = [sys.executable, "-m", "narwhal", "engine", "attest", "--launch", str(path), "--port", "0"]
    log = tmp_path / "sidecar.log"
    with log.open("wb") as file:
        sidecar = subprocess.Popen(command, stderr=file)
    try:
        said = re.compile(r"port (\d+)")
        eventually(lambda: said.search(log.read_text()) is not None, log.read_text)
        found = said.search(log.read_text())
        assert found is not None
        port = int(found[1])
        status, body = get(port, "/attestation")
        assert status == 200
        document = json.loads(body)
        assert problems(document, "attestation") == []
        assert document["process"]["pid"] == engine.pid
        assert document["process"]["start_ticks"] == process.start_ticks(engine.pid)
        assert document["running_launch_digest"] == document["launch_digest"] == record.digest()
        assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", document["generation"])
        assert (document["cache"]["block_tokens"], document["engine_id"]) == (16, None)
        assert "no NIXL agent" in document["unknown"]["engine_id"]
        status_lines = Path(f"/proc/{sidecar.pid}/status").read_text()
        rss = re.search(r"VmRSS:\s+(\d+) kB", status_lines)
        assert rss is not None
        assert int(rss[1]) < 30_000
        engine.send_signal(signal.SIGKILL)
        engine.wait()
        eventually(lambda: get(port, "/attestation")[0] == 503, log.read_text)
        gone = json.loads(get(port, "/attestation")[1])
        assert (gone["process"], gone["generation"]) == (None, None)
        assert problems(gone, "attestation") == []
    finally:
        sidecar.kill()
        sidecar.wait()


@pytest.mark.e2e
def test_run_refuses_what_its_checks_find(launch: tuple[EngineLaunch, Path, "subprocess.Popen[bytes]"]) -> None:
    record, path, _ = launch
    again = subprocess.run(
        [sys.executable, "-m", "narwhal", "engine", "run", "--launch", str(path)], capture_output=True, text=True
    )
    assert again.returncode == 4
    assert f"cannot listen on port {record.port}" in again.stderr
    skipped = subprocess.run(
        [sys.executable, "-m", "narwhal", "engine", "check", "--launch", str(path), "--skip", "ports"],
        capture_output=True,
        text=True,
    )
    assert skipped.returncode == 0
    assert "ports" not in skipped.stdout


def get(port: int, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    except ConnectionError:
        return 0, b""
    finally:
        connection.close()


def eventually(met: Any, explain: Any) -> None:
    until_t = time.monotonic() + PATIENCE_S
    while not met():
        assert time.monotonic() < until_t, explain()
        time.sleep(0.05)
