"""Other routers from PyPI, each in an environment of its own, started for prefill and decode apart."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tools import BUILD, Mock, ToolError

PINS = Path(__file__).with_name("peers.txt")
OFFLINE = {"HF_HUB_OFFLINE": "1", "RUST_LOG": "warn"}
"""Peers look for tokenizers of models on the net; the mock has none."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A router of others."""

    name: str
    argv: Callable[[Path, Mock, int, int], list[str]]
    """Command by environment, engines, client port and metrics port."""
    pinned: bool = True
    """Whether it comes from PyPI (`peers.txt`)."""


def _vllm_router(venv: Path, mock: Mock, port: int, metrics: int) -> list[str]:
    engines = ["--prefill", f"http://127.0.0.1:{mock.prefill}", "--decode", f"http://127.0.0.1:{mock.decode}"]
    return [
        *(str(venv / "bin" / "vllm-router"), "--host", "127.0.0.1", "--port", str(port)),
        *("--vllm-pd-disaggregation", *engines, "--kv-connector", "nixl"),
        *("--policy", "round_robin", "--log-level", "warning", "--prometheus-port", str(metrics)),
    ]


def _sglang_router(venv: Path, mock: Mock, port: int, metrics: int) -> list[str]:
    bootstrap = "9001"  # SGLang's prefill engines name a port; nothing listens there
    engines = ["--prefill", f"http://127.0.0.1:{mock.prefill}", bootstrap]
    engines += ["--decode", f"http://127.0.0.1:{mock.decode}"]
    return [
        *(str(venv / "bin" / "python"), "-m", "sglang_router.launch_router", "--host", "127.0.0.1"),
        *("--port", str(port), "--pd-disaggregation", *engines),
        *("--policy", "round_robin", "--log-level", "warn", "--prometheus-port", str(metrics)),
    ]


def _floor(venv: Path, mock: Mock, port: int, metrics: int) -> list[str]:
    return [str(BUILD / "floor"), str(port), str(mock.prefill), str(mock.decode)]


FLOOR = "floor"
"""No router: the same relay in C, the share that no router can save."""
PEERS = {
    peer.name: peer
    for peer in (
        Peer("vllm-router", _vllm_router),
        Peer("sglang-router", _sglang_router),
        Peer(FLOOR, _floor, pinned=False),
    )
}
DEFAULT = ("vllm-router", "sglang-router")
REFERENCE = "vllm-router"
"""The peer that the goals are ratios to."""


def pin(name: str) -> str:
    """The requirement of a peer, with its version."""
    lines = [line.strip() for line in PINS.read_text().splitlines()]
    found = [line for line in lines if line.partition("==")[0] == name]
    if not found:
        raise ToolError(f"{PINS} has no line for {name}")
    return found[0]


def install(name: str) -> Path:
    """The environment of a peer, made where it is missing or has another version. Raises `ToolError`."""
    venv = BUILD / "peers" / name
    if not PEERS[name].pinned:
        return venv
    requirement = pin(name)
    stamp = venv / "installed"
    if stamp.is_file() and stamp.read_text() == requirement:
        return venv
    shutil.rmtree(venv, ignore_errors=True)
    steps = (
        [sys.executable, "-m", "venv", str(venv)],
        [str(venv / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", requirement],
    )
    for argv in steps:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
            raise ToolError(f"{requirement} cannot be installed: {''.join(last)}")
    stamp.write_text(requirement)
    return venv
