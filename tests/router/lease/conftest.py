"""Lease stores that are real: a locked file, and an etcd of the test's own."""

import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from narwhal.router.lease import EtcdStore, FileStore, Store, StoreError

ROOT = Path(__file__).resolve().parents[3]
PATIENCE_S = 60.0
OpenStore = Callable[[], Store]
"""Another client of the same lease, as another router would have."""


class Etcd:
    """One member, on ports of its own."""

    def __init__(self, folder: Path) -> None:
        binary = shutil.which("etcd")
        if binary is None:
            found = subprocess.run([ROOT / "scripts/etcd"], capture_output=True, text=True, check=False)
            if found.returncode != 0:
                pytest.skip(found.stderr.strip())
            binary = found.stdout.strip()
        self.client, self.peer = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.client}"
        self._folder = folder
        self._argv = [
            binary,
            *("--name", "one", "--data-dir", str(folder / "data"), "--log-level", "error"),
            *("--listen-client-urls", self.url, "--advertise-client-urls", self.url),
            *("--listen-peer-urls", f"http://127.0.0.1:{self.peer}"),
            *("--initial-advertise-peer-urls", f"http://127.0.0.1:{self.peer}"),
            *("--initial-cluster", f"one=http://127.0.0.1:{self.peer}", "--unsafe-no-fsync"),
        ]
        if (
            subprocess.run([binary, "--help"], capture_output=True, text=True, check=False).stdout.count("no-fsync")
            == 0
        ):
            self._argv.remove("--unsafe-no-fsync")
        self.start()

    def start(self) -> None:
        """Start the member, or start it again on the same data."""
        log = (self._folder / "etcd.log").open("ab")
        self.process = subprocess.Popen(self._argv, stdout=log, stderr=log)
        until_t = time.monotonic() + PATIENCE_S
        while True:
            try:
                self.store().leader()
                return
            except StoreError:
                assert self.process.poll() is None, (self._folder / "etcd.log").read_text()
                assert time.monotonic() < until_t
                time.sleep(0.05)

    def stop(self) -> None:
        """Kill the member."""
        self.process.kill()
        self.process.wait()

    def store(
        self, *, ttl_s: float = 2.0, prefix: str = "/narwhal/test", user: str = "", password: str = ""
    ) -> EtcdStore:
        """A client."""
        return EtcdStore([self.url], prefix, ttl_s=ttl_s, user=user, password=password)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """A running etcd."""
    member = Etcd(tmp_path_factory.mktemp("etcd"))
    yield member
    member.stop()


@pytest.fixture(params=["file", pytest.param("etcd", marks=pytest.mark.e2e)])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenStore]:
    """Clients of one lease that nobody holds yet."""
    opened: list[Store] = []

    def another() -> Store:
        if request.param == "file":
            opened.append(FileStore(tmp_path / "run/lease"))
        else:
            opened.append(request.getfixturevalue("etcd").store(prefix=f"/narwhal/{tmp_path.name}"))
        return opened[-1]

    yield another
    for store in opened:
        store.close()
