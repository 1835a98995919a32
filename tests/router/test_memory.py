"""A request leaves nothing behind for the cycle collector: its pauses would stop every stream."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.router.harness import FakeEngine, Router, eventually, post, read_all, read_until, write_fleet

PROGRAM = """
import gc, pathlib, signal, sys
from narwhal.fleet import open_fleet
from narwhal.router import serve
gc.disable()
signal.signal(signal.SIGUSR1, lambda *_: print(gc.collect(), flush=True))
serve(open_fleet(pathlib.Path(sys.argv[1])), state_dir=pathlib.Path(sys.argv[2]))
"""
REQUESTS = 100


def test_requests_make_no_reference_cycles(tmp_path: Path) -> None:
    engines = [FakeEngine(), FakeEngine()]
    fleet, port, admin_port = write_fleet(
        tmp_path, [engine.port for engine in engines], recovery="probe_interval_s: 60"
    )
    argv = [sys.executable, "-c", PROGRAM, str(fleet), str(tmp_path / "state")]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    (tmp_path / "log").touch()
    router = Router(process, port, admin_port, tmp_path / "state", tmp_path / "log")
    assert process.stdout is not None

    def collected() -> int:
        os.kill(process.pid, signal.SIGUSR1)
        return int(process.stdout.readline())  # type: ignore[union-attr]

    try:
        eventually(router.ready, "readiness")
        for stream in (True, False):
            body = {"prompt": "x", "max_tokens": 3, "stream": stream}
            assert router.send("POST", "/v1/completions", body)[0] == 200
            collected()
            with router.connect() as sock:  # kept alive
                for _ in range(REQUESTS):
                    sock.sendall(post(body))
                    assert b" 200 " in read_until(sock, b"0\r\n\r\n" if stream else b"}}")
            assert collected() < REQUESTS, f"stream={stream}"
        for _ in range(REQUESTS):  # clients that leave
            with router.connect() as sock:
                sock.sendall(post({"prompt": "x", "max_tokens": 3, "stream": True}))
        eventually(lambda: router.state()["counts"]["offered"] >= 3 * REQUESTS + 2, "their arrival")
        for _ in range(REQUESTS):  # refusals
            with router.connect() as sock:
                sock.sendall(post(b"{"))
                sock.shutdown(1)
                read_all(sock)
        assert collected() < 4 * REQUESTS
    finally:
        router.stop()
        for engine in engines:
            engine.close()
