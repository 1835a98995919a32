"""Gate A's facts: what the tools of a host say, read from recordings."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from narwhal.documents import data_path
from tests.playbooks.loading import load

RECORDED = Path(__file__).parent / "recorded"
facts = load("roles", "discover", "files", "facts.py")


def test_gpus_of_nvidia_smi() -> None:
    assert facts.nvidia_gpus((RECORDED / "nvidia-h200.txt").read_text()) == [
        {
            "index": 0,
            "product": "NVIDIA H200",
            "uuid": "GPU-00000000-0000-0000-0000-000000000001",
            "driver": "580.159.04",
            "memory_mib": 143771,
        }
    ]


def test_memory_that_nvidia_smi_does_not_tell_is_null() -> None:
    (gpu,) = facts.nvidia_gpus("3, NVIDIA GB10, GPU-1, [N/A], 580.1\n")
    assert (gpu["index"], gpu["memory_mib"]) == (3, None)


def test_a_line_that_is_none_of_a_gpu_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot read the line 'No devices were found'"):
        facts.nvidia_gpus("No devices were found\n")


def test_gpus_of_rocminfo() -> None:
    assert facts.amd_gpus((RECORDED / "rocminfo.txt").read_text(), "6.12.12") == [
        {
            "index": 0,
            "product": "AMD Instinct MI210",
            "uuid": "GPU-0000000000000001",
            "driver": "6.12.12",
            "memory_mib": 65520,
        }
    ]


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        (
            "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18",
            "Driver/library version mismatch",
        ),
        ("echo 'No devices were found'; exit 0", "cannot read the line"),
        ("exit 1", "it said nothing"),
    ],
)
def test_a_driver_that_does_not_work_is_a_problem(
    script: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    gpus, said = facts.find_gpus()
    assert gpus == []
    assert problem in said


def test_interfaces_with_their_addresses() -> None:
    links = [
        {"ifname": "lo", "flags": ["LOOPBACK", "UP"], "mtu": 65536, "addr_info": [{"local": "127.0.0.1"}]},
        {"ifname": "eth1", "flags": ["BROADCAST"], "mtu": 9000, "addr_info": []},
        {},
    ]
    found = facts.interfaces(json.dumps(links), {"lo": None, "eth1": 100000}.get)
    assert [link["name"] for link in found] == ["lo", "eth1"]
    assert (found[0]["up"], found[1]["up"]) == (True, False)
    assert found[0]["addresses"] == ["127.0.0.1"]
    assert found[1]["speed_mbps"] == 100000


def test_listening_ports_and_whose_they_are() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as four,
        socket.create_server(("::1", 0), family=socket.AF_INET6) as six,
    ):
        found = facts.listening(facts.read("/proc/net/tcp"), facts.read("/proc/net/tcp6"))
        for server in (four, six):
            address, port = server.getsockname()[:2]
            (entry,) = [entry for entry in found if (entry["address"], entry["port"]) == (address, port)]
            assert entry["uid"] == Path("/proc/self").stat().st_uid


def test_the_disk_of_a_folder_that_is_not_there_yet_is_its_parents(tmp_path: Path) -> None:
    assert facts.disk(str(tmp_path / "not" / "yet"))["total_bytes"] == facts.disk(str(tmp_path))["total_bytes"] > 0


def test_a_python_that_is_not_there_is_null() -> None:
    assert facts.ask_python("python3.99") is None


def test_the_program_prints_one_object() -> None:
    program = data_path("playbooks", "roles", "discover", "files", "facts.py")
    argv = [sys.executable, str(program), "--python", sys.executable, "--path", "/opt/none"]
    printed = json.loads(subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout)
    assert printed["python"]["version"].split(".")[:2] == [str(part) for part in sys.version_info[:2]]
    assert printed["os"]["id"]
    assert set(printed["disks"]) == {"/opt/none"}
    assert printed["clock"]["unix_s"] > 1.7e9
