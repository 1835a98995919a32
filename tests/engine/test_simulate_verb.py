import socket
import subprocess
import sys

import pytest

pytestmark = pytest.mark.e2e


def simulate(*arguments: str) -> "subprocess.CompletedProcess[str]":
    argv = [sys.executable, "-m", "narwhal", "engine", "simulate", "--port", "0", "--side-channel-port", "0"]
    return subprocess.run([*argv, *arguments], capture_output=True, text=True, timeout=60)


def test_a_context_beyond_the_kv_cache_is_refused() -> None:
    done = simulate("--max-model-len", "999999")
    assert done.returncode == 2
    assert "--max-model-len 999999 exceeds the KV cache of profile demo (65536 tokens" in done.stderr


def test_an_unknown_profile_is_refused_with_the_known_ones() -> None:
    done = simulate("--profile", "nope")
    assert done.returncode == 2
    assert "demo" in done.stderr


def test_a_fault_that_is_none_is_refused() -> None:
    done = simulate("--fault", '{"kind": "nonsense"}')
    assert done.returncode == 2
    assert "nonsense" in done.stderr


def test_a_port_in_use_is_a_failure_that_names_the_way_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        done = simulate("--port", str(other.getsockname()[1]))
    assert done.returncode == 4
    assert "choose another --port" in done.stderr
