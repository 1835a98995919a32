"""What stands in front of two routers: the shipped examples, checked by the programs that they are for."""

import http.client
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from narwhal.dev.ports import free_run
from tests.e2e.commands import narwhal
from tests.e2e.test_standby import both_ready, follows, leases, pair_of
from tests.router.harness import PATIENCE_S, eventually

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "docs/front"


@pytest.fixture(scope="module")
def programs() -> dict[str, str]:
    """Where HAProxy and keepalived are."""
    found = subprocess.run([ROOT / "scripts/front"], capture_output=True, text=True, check=False)
    if found.returncode != 0:
        pytest.skip(found.stderr.strip())
    return {Path(path).name: path for path in found.stdout.split()}


def complaints(keepalived: str, config: Path) -> list[str]:
    """What keepalived finds wrong with a file; it may end by a signal all the same, so its exit says nothing."""
    run = subprocess.run(
        [keepalived, "-t", "-f", str(config)], capture_output=True, text=True, timeout=60, check=False,
        start_new_session=True,
    )  # fmt: skip
    return [line for line in run.stderr.splitlines() if line.strip() != "Terminated"]


def test_the_example_for_keepalived_is_what_it_reads(programs: dict[str, str], tmp_path: Path) -> None:
    text = (EXAMPLES / "keepalived.conf").read_text()
    card = next(name for name in sorted(os.listdir("/sys/class/net")) if name != "lo")
    config = tmp_path / "keepalived.conf"
    config.write_text(text.replace("eth0", card))
    assert complaints(programs["keepalived"], config) == []
    config.write_text(text.replace("eth0", card).replace("fall 1", "falls 1"))
    assert any("falls" in line for line in complaints(programs["keepalived"], config))


def test_the_example_for_haproxy_is_what_it_reads(programs: dict[str, str]) -> None:
    argv = [programs["haproxy"], "-c", "-f", str(EXAMPLES / "haproxy.cfg")]
    found = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert (found.returncode, "WARNING" in found.stderr) == (0, False), found.stderr


class Client:
    """Asks one address again and again, each time on a connection of its own, and never a second time."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.said: list[int | str] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def ask(self) -> int | str:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            body = '{"prompt": "x", "max_tokens": 3}'
            connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
            answer = connection.getresponse()
            body = answer.read()
            return 200 if answer.status == 200 else f"{answer.status} {body.decode()}"
        except (OSError, http.client.HTTPException) as error:
            return type(error).__name__
        finally:
            connection.close()

    def _run(self) -> None:
        while not self._done.is_set():
            self.said.append(self.ask())

    def more(self, count: int) -> None:
        """Wait for so many further answers."""
        until = len(self.said) + count
        eventually(lambda: len(self.said) >= until, "more answers")

    def stop(self) -> None:
        self._done.set()
        self._thread.join()


@pytest.fixture
def haproxy(programs: dict[str, str], tmp_path: Path) -> Iterator["Front"]:
    front = Front(programs["haproxy"], tmp_path)
    yield front
    front.stop()


class Front:
    """HAProxy, by the shipped example but for its addresses."""

    def __init__(self, program: str, folder: Path) -> None:
        self.port = free_run(1)
        self._program, self._folder = program, folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        return (self._folder / "haproxy.log").read_text()

    def start(self, primary: int, standby: int) -> None:
        text = (EXAMPLES / "haproxy.cfg").read_text()
        for example, port in (
            ("192.0.2.10:8000", self.port),
            ("192.0.2.11:8000", primary),
            ("192.0.2.12:8000", standby),
        ):
            assert text.count(example) == 1
            text = text.replace(example, f"127.0.0.1:{port}")
        config = self._folder / "haproxy.cfg"
        config.write_text(text)
        log = (self._folder / "haproxy.log").open("wb")
        self._process = subprocess.Popen([self._program, "-db", "-f", str(config)], stdout=log, stderr=log)
        log.close()

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)


def test_haproxy_follows_planned_handovers_without_a_failed_request_and_a_kill(tmp_path: Path, haproxy: Front) -> None:
    with pair_of(tmp_path, "{backend: file}") as pair:
        primary, standby = both_ready(pair)
        haproxy.start(primary.port, standby.port)
        client = Client(haproxy.port)
        try:
            eventually(lambda: client.said[-1:] == [200], "an answer through HAProxy")
            begun = client.said.index(200)
            client.more(20)
            said = narwhal("handover", "--router", f"unix:{primary.admin_socket}", home=tmp_path)
            assert said["exit_code"] == 0
            assert leases(primary, standby) == ["deposed", "leader"]
            client.more(20)

            eventually(lambda: follows(primary), "the former one's following")
            standby.process.send_signal(signal.SIGTERM)
            assert standby.process.wait(60) == 0
            client.more(20)
            assert [(n, said) for n, said in enumerate(client.said) if said != 200 and n > begun] == [], haproxy.log

            again = pair.start("standby")
            eventually(lambda: follows(again), "the standby's following")
            killed = len(client.said)
            primary.process.kill()
            eventually(again.ready, "the standby's readiness")
            eventually(lambda: client.said[-20:] == [200] * 20, "answers of the standby")
            told = {str(said)[:3] for said in client.said[killed:]}
            assert told <= {"200", "502", "503"}, told  # HAProxy says so while nobody leads
        finally:
            client.stop()
