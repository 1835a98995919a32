"""Telling systemd."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from narwhal.engine.notify import watchdog_s


@pytest.mark.parametrize(
    ("environ", "interval_s"),
    [({"WATCHDOG_USEC": "60000000"}, 30.0), ({}, None), ({"WATCHDOG_USEC": "0"}, None), ({"WATCHDOG_USEC": "x"}, None)],
)
def test_the_watchdog_is_told_twice_in_each_interval(environ: dict[str, str], interval_s: float | None) -> None:
    assert watchdog_s(environ) == interval_s


@pytest.mark.e2e
def test_a_simulated_engine_tells_systemd_that_it_is_ready_and_turns(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        notified.bind(str(tmp_path / "notify"))
        notified.settimeout(60)
        environment = os.environ | {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}
        argv = [sys.executable, "-m", "narwhal", "engine", "simulate", "--port", "0", "--side-channel-port", "0"]
        engine = subprocess.Popen(argv, env=environment, stderr=subprocess.DEVNULL)
        try:
            assert [notified.recv(100) for _ in range(3)] == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]
        finally:
            engine.send_signal(signal.SIGTERM)
            engine.wait(30)
