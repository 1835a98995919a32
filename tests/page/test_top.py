"""`narwhal top` in a terminal of its own, before a real router."""

import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.router.harness import PATIENCE_S, FakeEngine, Router, eventually, routing, start_router

pytestmark = pytest.mark.e2e
OTHER_SCREEN, BACK, CURSOR = "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25h"


class Terminal:
    """A verb of narwhal in a terminal; `seen` is all that it wrote."""

    def __init__(self, *argv: str, columns: int = 100) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        self.before = termios.tcgetattr(self.master)
        self.seen = ""
        environ = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "NARWHAL_ROUTER")}
        command = [sys.executable, "-m", "narwhal", *argv]
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environ | {"TERM": "xterm"}, start_new_session=True
        )
        os.close(slave)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while data := os.read(self.master, 65536):
                self.seen += data.decode("utf-8", "replace")

    def last(self) -> str:
        """The last picture, without colours."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.seen.rpartition("\x1b[H")[2])

    def shows(self, words: str) -> None:
        eventually(lambda: words in self.last(), f"{words!r}, shown is {self.last()!r}")

    def press(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def end(self) -> int:
        """Its exit code; the terminal has to be as before."""
        code = self.process.wait(PATIENCE_S)
        eventually(lambda: BACK in self.seen, "the first screen")
        assert self.seen.index(OTHER_SCREEN) < self.seen.rindex(BACK)
        assert CURSOR in self.seen
        assert termios.tcgetattr(self.master) == self.before
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.master)


@contextlib.contextmanager
def terminal(router: Router, *argv: str, columns: int = 100) -> Iterator[Terminal]:
    shown = Terminal("top", "--router", f"unix:{router.admin_socket}", *argv, columns=columns)
    try:
        yield shown
    finally:
        shown.close()


@pytest.fixture(scope="module")
def engines() -> Iterator[list[FakeEngine]]:
    four = [FakeEngine() for _ in range(4)]
    yield four
    for engine in four:
        engine.close()


def test_it_follows_a_move_and_keys_and_leaves_a_clean_terminal(engines: list[FakeEngine], tmp_path: Path) -> None:
    with routing(tmp_path, engines) as router, terminal(router) as top:
        top.shows("split     2 prefill, 2 decode")
        order = {"engine": "local/1", "role": "decode"}
        assert router.send("POST", "/narwhal/move", order, admin=True)[0] == 200
        top.shows("split     1 prefill, 3 decode")
        top.shows("local/1 prefill → decode")
        top.press("?")
        top.shows("narwhal top")
        top.press("?p")
        top.shows("PAUSED")
        assert router.send("POST", "/narwhal/move", {**order, "role": "prefill"}, admin=True)[0] == 200
        eventually(lambda: router.state()["split"]["prefill"] == 2)
        assert "1 prefill, 3 decode" in top.last()
        top.press("p")
        top.shows("split     2 prefill, 2 decode")
        top.press("q")
        assert top.end() == 0


def test_a_lost_router_is_said_and_found_again_and_ctrl_c_ends_it(engines: list[FakeEngine], tmp_path: Path) -> None:
    with routing(tmp_path, engines) as router, terminal(router, columns=50) as top:
        top.shows("split     2 prefill")
        router.stop()
        top.shows("LOST for")
        again = start_router(tmp_path, tmp_path / "fleet.yaml", router.port, router.admin_port)
        try:
            eventually(lambda: "LOST" not in top.last() and "split     2 prefill" in top.last(), "the router again")
            os.kill(top.process.pid, signal.SIGINT)
            assert top.end() == 130
        finally:
            again.stop()


def test_once_prints_all_of_it_and_no_terminal_is_an_error(engines: list[FakeEngine], tmp_path: Path) -> None:
    with routing(tmp_path, engines) as router:
        command = [sys.executable, "-m", "narwhal", "top", "--router", f"unix:{router.admin_socket}"]
        done = subprocess.run([*command, "--once"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, done.stderr
        assert "split     2 prefill, 2 decode" in done.stdout
        assert "\x1b" not in done.stdout
        done = subprocess.run([*command, "--once", "--format", "json"], capture_output=True, text=True)
        assert json.loads(done.stdout)["data"].keys() == {"state", "decisions", "changes", "links"}
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert done.returncode == 2
        assert "narwhal top --once" in done.stderr
