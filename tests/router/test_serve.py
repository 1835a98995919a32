"""The process around the router: where it listens, what it tells systemd, what it will not start with."""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from narwhal.fleet import open_fleet
from narwhal.router import ServeError, serve
from tests.router.harness import FakeEngine, eventually, post, read_until, start_router, write_fleet


@pytest.fixture
def engines() -> Iterator[list[FakeEngine]]:
    pair = [FakeEngine(), FakeEngine()]
    yield pair
    for engine in pair:
        engine.close()


def test_systemd_is_told_of_readiness_life_and_stopping(tmp_path: Path, engines: list[FakeEngine]) -> None:
    told: list[bytes] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        notified.bind(str(tmp_path / "notify"))
        notified.settimeout(60)
        fleet, port, admin_port = write_fleet(tmp_path, [engine.port for engine in engines])
        environment = {**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}
        router = start_router(tmp_path, fleet, port, admin_port, env=environment)
        try:
            while told.count(b"WATCHDOG=1") < 2:
                told.append(notified.recv(100))
            assert told[0] == b"READY=1"
        finally:
            assert router.stop() == 0
        while told[-1] != b"STOPPING=1":
            told.append(notified.recv(100))


def test_a_listener_on_ipv6(tmp_path: Path, engines: list[FakeEngine]) -> None:
    with contextlib.closing(socket.socket(socket.AF_INET6, socket.SOCK_STREAM)) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            pytest.skip("not installable: this machine has no IPv6 loopback")
    fleet, port, admin_port = write_fleet(tmp_path, [engine.port for engine in engines])
    program = (
        "import dataclasses, pathlib, sys\n"
        "from narwhal.fleet import open_fleet\n"
        "from narwhal.router import serve\n"
        "fleet = open_fleet(pathlib.Path(sys.argv[1]))\n"
        "routers = tuple(dataclasses.replace(r, bind='::1', admin_bind='::1') for r in fleet.routers)\n"
        "serve(dataclasses.replace(fleet, routers=routers), state_dir=pathlib.Path(sys.argv[2]))\n"
    )
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(fleet), str(tmp_path / "state")], stdout=log, stderr=log
        )
    try:

        def ready() -> bool:
            assert process.poll() is None, (tmp_path / "log").read_text()
            with contextlib.suppress(OSError), socket.create_connection(("::1", admin_port), 60) as sock:
                sock.sendall(b"GET /ready HTTP/1.1\r\nHost: [::1]:%d\r\n\r\n" % admin_port)
                return b" 200 " in read_until(sock, b"\r\n\r\n")
            return False

        eventually(ready, "readiness")
        with socket.create_connection(("::1", port), 60) as sock:
            sock.sendall(post({"prompt": "x", "max_tokens": 2}))
            assert b" 200 " in read_until(sock, b"}}")
    finally:
        process.terminate()
        assert process.wait(60) == 0


def test_a_port_that_is_taken_is_named(tmp_path: Path, engines: list[FakeEngine]) -> None:
    fleet, port, _ = write_fleet(tmp_path, [engine.port for engine in engines])
    with socket.create_server(("127.0.0.1", port)), pytest.raises(ServeError, match=rf":{port} \(routers.port\)"):
        serve(open_fleet(fleet), state_dir=tmp_path)


def test_a_tenants_key_that_cannot_be_read_stops_the_start(tmp_path: Path, engines: list[FakeEngine]) -> None:
    tenants = "\n  tenants: [{name: lab, keys: [{env: NO_SUCH_LAB_KEY}]}]"
    fleet, _, _ = write_fleet(tmp_path, [engine.port for engine in engines], tenants=tenants)
    with pytest.raises(ServeError, match=r"routers.tenants\[0\].keys\[0\].*NO_SUCH_LAB_KEY"):
        serve(open_fleet(fleet), state_dir=tmp_path)


def test_a_key_without_effect_is_named_at_the_start(
    tmp_path: Path, engines: list[FakeEngine], caplog: pytest.LogCaptureFixture
) -> None:
    fleet, port, _ = write_fleet(tmp_path, [engine.port for engine in engines])
    fleet.write_text(fleet.read_text() + "profiles: {path: /nowhere}\n")
    with socket.create_server(("127.0.0.1", port)), pytest.raises(ServeError):
        serve(open_fleet(fleet), state_dir=tmp_path)
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warned == ["profiles.path has no effect in this version of narwhal-serve"]


def test_a_fleet_file_that_cannot_be_used_gives_exit_code_2(tmp_path: Path) -> None:
    fleet, _, _ = write_fleet(tmp_path, [1, 2])
    fleet.write_text(fleet.read_text() + "colour: blue\n")
    argv = [sys.executable, "-m", "narwhal.cli.serve", "--fleet", str(fleet), "--state-dir", str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert f"{fleet}:" in done.stderr + done.stdout
    assert "colour" in done.stderr + done.stdout
