"""Routers that run in front of the mock engines: ours, complete, and the peers."""

import contextlib
import json
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import peers
import processes
from tools import BUILD, Mock, ToolError, load

from narwhal.dev.ports import free_run
from narwhal.fleet.model import Serving

OURS, CONTINUED, SECURED, DIRECT = "narwhal", "narwhal, continuation on", "narwhal, TLS", "direct"
"""Our router; the same with `serving.continuation`; with `routers.tls`; no router at all."""


def shared(workers: int) -> str:
    """The name of our router with so many `routers.workers`."""
    return f"narwhal, {workers} workers"


SHARED = shared(2)
_WORKERS = re.compile(r"narwhal, (\d+) workers")

PROFILE = {
    "apiVersion": "narwhal/v1",
    "kind": "Profile",
    "name": "mock",
    "source": "The mock engines of bench/router: they answer at once and hold any number of streams.",
    "prefill": {"t_min_s": 0.0, "a_s": 1e-4, "b_s_per_token": 1e-8, "c_s_per_token2": 0.0},
    "decode": {"d0_s": 1e-4, "d1_s": 1e-7, "d2_s": 1e-12},
    "transfer": {"t0_s": 1e-4, "bandwidth_bytes_per_s": 1e12},
    "kv_bytes_per_token": 131072,
    "kv_capacity_tokens": 1_000_000_000,
    "block_tokens": 16,
    "max_num_seqs": 8192,
    "max_num_batched_tokens": 8192,
}
FLEET = """\
apiVersion: narwhal/v1
kind: Fleet
metadata: {{name: bench}}
model: {{name: mock, path: /models/mock}}
slo: {{ttft_s: 10.0, tpot_s: 0.5}}
hosts: [{{name: local}}]
engines:
  runtime: {{kind: simulated, profile: {profile}}}
  per_host: 2
  max_model_len: 131072
  max_num_seqs: 8192
  max_num_batched_tokens: 8192
  port_base: {engines}
  side_channel_port_base: {side}
  overrides:
    local/0: {{url: "http://127.0.0.1:{prefill}"}}
    local/1: {{url: "http://127.0.0.1:{decode}"}}
split: {{prefill: 1, decode: 1}}
routers: {{primary: local, port: {port}, admin: {{port: {admin}}}{routers}}}
serving: {{{serving}}}
"""
"""Everything that is not said here has its default: predictive admission, controller, journal, metrics, deadlines. The
targets are wide, so that admission decides and a busy machine is not measured by its refusals."""


@dataclass
class Running:
    """A router, or the decode engine itself (`direct`)."""

    name: str
    port: int
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def tls(self) -> bool:
        """Whether its clients speak TLS."""
        return self.name == SECURED

    @property
    def pid(self) -> int:
        """Its process, the root of a tree."""
        assert self.process is not None
        return self.process.pid


def can_continue() -> bool:
    """Whether this version's fleet file knows `serving.continuation`."""
    return "continuation" in Serving.model_fields


@contextlib.contextmanager
def running(name: str, mock: Mock) -> Iterator[Running]:
    """Start a router in front of the mock, warm, and end it afterwards. Raises `ToolError` when it does not start."""
    if name == DIRECT:
        yield Running(name, mock.decode)
        return
    folder = Path(tempfile.mkdtemp(prefix="bench-router-"))
    log = BUILD / "logs" / f"{name.replace(', ', '-').replace(' ', '-')}.log"
    port = free_run(6)
    process: subprocess.Popen[bytes] | None = None
    try:
        if name in peers.PEERS:
            venv = peers.install(name)
            argv = peers.PEERS[name].argv(venv, mock, port, port + 1)
        else:
            argv = _ours(folder, mock, port, name)
        process = processes.start(argv, log, env=peers.OFFLINE)
        router = Running(name, port, process)
        mock.set()  # at the pace of the last scene, warming it would take minutes
        _wait(router, log)
        yield router
    finally:
        if process is not None:
            processes.end(process)
        shutil.rmtree(folder, ignore_errors=True)


def _ours(folder: Path, mock: Mock, port: int, name: str) -> list[str]:
    profile, fleet = folder / "mock.json", folder / "fleet.yaml"
    profile.write_text(json.dumps(PROFILE))
    fleet.write_text(
        FLEET.format(
            profile=profile,
            prefill=mock.prefill,
            decode=mock.decode,
            port=port,
            admin=port + 1,
            engines=port + 2,
            side=port + 4,
            serving=f"continuation: {{enabled: {str(name == CONTINUED).lower()}}}",
            routers=_routers(name, folder),
        )
    )
    return serve_argv(fleet, folder)


def _routers(name: str, folder: Path) -> str:
    """What the name asks of `routers`, to be added to its mapping."""
    if name == SECURED:
        return f", tls: {_certificate(folder)}"
    found = _WORKERS.fullmatch(name)
    return f", workers: {found[1]}" if found else ""


def _certificate(folder: Path) -> str:
    """A certificate that nobody signed, as the fleet file names it."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    new = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    argv = ["openssl", *new, "-subj", "/CN=bench", "-keyout", str(key), "-out", str(cert)]
    try:
        subprocess.run(argv, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise ToolError(f"no certificate: {error}; apt-get install openssl") from None
    return f"{{cert: {cert}, key: {key}}}"


def serve_argv(fleet: Path, folder: Path) -> list[str]:
    """The command that starts our router."""
    return [sys.executable, "-m", "narwhal.cli.serve", "--fleet", str(fleet), "--state-dir", str(folder / "state")]


def _wait(router: Running, log: Path) -> None:
    """Wait until it is up and serves, and warm it. Peers say that they are healthy before they know their engines."""
    process = router.process
    assert process is not None
    page = "ready" if router.name not in peers.PEERS else "health"

    def up() -> bool:
        scheme = "https" if router.tls else "http"
        return process.poll() is not None or answers(f"{scheme}://127.0.0.1:{router.port}/{page}")

    def serves() -> bool:
        seen = load(router.port, connections=8, requests=200, tokens=8, tls=router.tls)
        streamed = load(router.port, connections=8, requests=50, stream=True, tokens=50, tls=router.tls)
        return seen.ok == 200 and streamed.ok == 50

    if not processes.eventually(up) or process.poll() is not None:
        raise ToolError(f"{router.name} did not start; the end of {log}:\n{_end_of(log)}")
    if not processes.eventually(serves, within_s=60.0, every_s=0.5):
        raise ToolError(f"{router.name} does not serve the mock engines; the end of {log}:\n{_end_of(log)}")


def answers(url: str) -> bool:
    """Whether a page answers 200; nobody signed our certificate."""
    trust = ssl._create_unverified_context() if url.startswith("https:") else None
    try:
        with urllib.request.urlopen(url, timeout=5, context=trust) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def _end_of(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-5:])
