"""What is wrong with hosts stops the right gate with one line: by plain ansible-playbook, on a fleet that serves.

Each test leaves the hosts as it has found them.
"""

import contextlib
import json
import re
from collections.abc import Iterator

import pytest

from tests.lab import network
from tests.lab.hosts import Lab
from tests.lab.playing import Fleet, Played
from tests.lab.tools import eventually

pytestmark = [pytest.mark.lab, pytest.mark.timeout(2400)]
GPU = {"narwhal_gpus": 1, "narwhal_runtime": {"kind": "venv"}}
"""What makes gate A look for GPUs on these hosts, which have none."""


@contextlib.contextmanager
def with_program(lab: Lab, host: str, name: str, script: str) -> Iterator[None]:
    """A program that stands before the real one."""
    lab.ssh(host, f"cat > /usr/local/bin/{name} <<'END'\n#!/bin/sh\n{script}\nEND\nchmod +x /usr/local/bin/{name}")
    try:
        yield
    finally:
        lab.ssh(host, f"rm /usr/local/bin/{name}")


def stopped(played: Played, host: str, pattern: str) -> None:
    """It stopped because of one host, and said so in one line, there and for whoever reads along."""
    assert played.code in (2, 4)
    assert list(played.stops) == [host]
    message = played.stops[host]
    assert re.search(pattern, message), message
    assert "\n" not in message
    assert played.said.rstrip().splitlines()[-1].endswith(f": {host}: {message}")


def passed(played: Played) -> None:
    assert played.code == 0, played.stops


@pytest.fixture(scope="module", autouse=True)
def unlocked(served: Fleet) -> Iterator[None]:
    """Gates that stop leave their lock to whoever goes on, and that is nobody at the end."""
    yield
    passed(served.play("unlock"))


# --- gate A


def test_gate_a_works_without_narwhal_and_changes_nothing(served: Fleet, lab: Lab) -> None:
    played = served.play("gate-a-discover")
    passed(played)
    assert played.changed == []
    evidence = served.directory / "evidence" / "a-discover"
    assert sorted(file.name for file in evidence.glob("*.json")) == ["h1.json", "h2.json", "h3.json"]
    assert {file.stat().st_mode & 0o777 for file in evidence.glob("*.json")} == {0o600}
    seen = json.loads((evidence / "h2.json").read_text())
    assert seen["fabric"] == {"interface": "eth1", "address": network.address("h2", "fabric")}
    assert seen["python"] == "3.11"
    assert seen["facts"]["hostname"] == "h2"
    assert re.fullmatch("sha256:[0-9a-f]{64}", seen["model"]["digest"])
    assert lab.ssh("h2", "stat -c %a:%U /var/lib/narwhal/evidence/a-discover.json") == "600:root\n"


def test_a_host_key_that_is_not_the_pinned_one(served: Fleet, lab: Lab) -> None:
    known = served.directory / "known_hosts"
    text = known.read_text()
    known.write_text(text.replace(lab.host_key("h2"), lab.host_key("h1")))
    try:
        played = served.play("gate-a-discover", "--limit", "h2")
    finally:
        known.write_text(text)
    assert played.code == 4
    stopped(played, "h2", "host key is not the one that the fleet file pins; .* correct hosts.ssh.host_key")


def test_sudo_missing(served: Fleet, lab: Lab) -> None:
    lab.ssh("h1", "mv /etc/sudoers.d/ops /root/")
    try:
        played = served.play("gate-a-discover", "--limit", "h1")
    finally:
        lab.ssh("h1", "mv /root/ops /etc/sudoers.d/")
    stopped(played, "h1", "ops cannot sudo on h1; give it a rule in /etc/sudoers.d")


@pytest.mark.parametrize("shift", ["+7 seconds", "-7 seconds"])
def test_a_clock_that_is_off(served: Fleet, lab: Lab, shift: str) -> None:
    with with_program(lab, "h2", "date", f'exec /bin/date -d "{shift}" "$@"'):
        played = served.play("gate-a-discover", "--limit", "h2")
    stopped(played, "h2", "the clock of h2 is more than 0.5 s off .*timedatectl")


def test_a_disk_that_is_full(served: Fleet, lab: Lab) -> None:
    lab.ssh("h3", "mkdir /mnt/small && mount -t tmpfs -o size=16m none /mnt/small")
    try:
        played = served.play("gate-a-discover", "--limit", "h3", "-e", "narwhal_home=/mnt/small")
    finally:
        lab.ssh("h3", "umount /mnt/small && rmdir /mnt/small")
    stopped(played, "h3", "h3 has 16 MiB free for /mnt/small, 2048 are needed; make room")


def test_drivers_that_differ(served: Fleet, lab: Lab) -> None:
    line = "0, NVIDIA H200, GPU-{0}, 143771, {1}"
    with (
        with_program(lab, "h1", "nvidia-smi", f"echo '{line.format(1, '580.159.04')}'"),
        with_program(lab, "h2", "nvidia-smi", f"echo '{line.format(2, '570.86.15')}'"),
    ):
        played = served.play("gate-a-discover", "--limit", "engines", "-e", json.dumps(GPU))
    stopped(played, "h2", r"h2 has NVIDIA H200 with driver 570.86.15, h1 has .* 580.159.04; install the same driver")


def test_a_gpu_that_is_not_there(served: Fleet, lab: Lab) -> None:
    with (
        with_program(lab, "h1", "nvidia-smi", "echo '0, NVIDIA H200, GPU-1, 143771, 580.159.04'"),
        with_program(lab, "h2", "nvidia-smi", "echo 'Driver/library version mismatch'; exit 18"),
    ):
        played = served.play("gate-a-discover", "--limit", "engines", "-e", json.dumps(GPU))
    stopped(played, "h2", "h2 has 0 GPUs, the fleet file says 1; nvidia-smi: Driver/library version mismatch")


def test_models_that_differ(served: Fleet, lab: Lab) -> None:
    lab.ssh("h2", "echo more >> /models/tiny/config.json")
    try:
        played = served.play("gate-a-discover", "--limit", "engines")
    finally:
        lab.ssh("h2", "echo '{}' > /models/tiny/config.json")
    stopped(played, "h2", r"/models/tiny differs: h2 has sha256:\w+, h1 has sha256:\w+; copy the approved one")


ETCD = """
import http.server, json, threading
class Member(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        data = json.dumps({"header": {"cluster_id": str(self.server.server_port)}}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
servers = [http.server.ThreadingHTTPServer(("0.0.0.0", port), Member) for port in (2379, 2380)]
threading.Thread(target=servers[0].serve_forever, daemon=True).start()
servers[1].serve_forever()
"""
"""Two members of etcd, each of a cluster of its own."""


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        (True, "the endpoints of the lease are members of 2 clusters, as h3 sees them"),
        (False, "http://10.99.0.12:2379 does not answer h3 as etcd does: .*refused.*; start etcd there"),
    ],
)
def test_a_lease_store_that_does_not_answer_as_one(served: Fleet, lab: Lab, runs: bool, message: str) -> None:
    endpoints = [f"http://{network.address('h2')}:{port}" for port in (2379, 2380)]
    lease = {"backend": "etcd", "endpoints": endpoints, "tls": None}
    if runs:
        lab.ssh("h2", f"cat > /root/etcd.py <<'END'\n{ETCD}\nEND")
        lab.ssh("h2", "systemd-run -q --unit=etcd python3 /root/etcd.py")
        eventually(lambda: ":2380" in lab.ssh("h2", "ss -ltn"), "the store")
    try:
        played = served.play("gate-a-discover", "--limit", "h3", "-e", json.dumps({"narwhal_lease": lease}))
    finally:
        lab.ssh("h2", "systemctl stop etcd", check=False)
    stopped(played, "h3", message)


# --- gate B


def test_a_bundle_that_is_not_the_approved_one(served: Fleet) -> None:
    played = served.play("gate-b-install", "--limit", "h1", "-e", f"narwhal_revision=sha256:{'0' * 64}")
    stopped(played, "h1", "make it with `narwhal package`")


def test_somebody_else_works_on_a_host(served: Fleet, lab: Lab) -> None:
    lab.ssh("h2", """echo '{"owner": "eve@desk", "since": "2026-01-01", "what": "Gate B"}' > /var/lib/narwhal/lock""")
    try:
        played = served.play("gate-b-install", "--limit", "h2", "-e", "narwhal_owner=ops@laptop")
    finally:
        lab.ssh("h2", "rm /var/lib/narwhal/lock")
    stopped(played, "h2", r"eve@desk works on h2 since 2026-01-01 \(Gate B\); ask them")


def test_a_half_installed_host(served: Fleet, lab: Lab) -> None:
    lab.ssh("h2", "rm /opt/narwhal/current/REVISION")
    stopped(served.play("gate-c-engines"), "h2", "h2 is half-installed .*; run gate B again")
    repaired = served.play("gate-b-install", "--diff")
    passed(repaired)
    assert {host for host, _ in repaired.changed} == {"h2"}  # and a second run changes nothing on the others
    assert lab.ssh("h2", "stat -c %a:%U:%G /var/lib/narwhal").strip() == "750:narwhal:narwhal"


# --- gate C


def test_a_port_that_is_taken_and_an_engine_that_cannot_start(served: Fleet, lab: Lab) -> None:
    lab.ssh("h1", "systemctl stop narwhal-engine@0; systemd-run -q --unit=squatter python3 -m http.server 8100")
    try:
        eventually(lambda: ":8100" in lab.ssh("h1", "ss -ltn"), "the squatter")
        taken = served.play("gate-a-discover", "--limit", "h1")
        played = served.play("gate-c-engines", "-e", "engine_start_s=1")
    finally:
        lab.ssh("h1", "systemctl stop squatter")
    stopped(taken, "h1", "port 8100 of h1 is taken by a process of root; see whose it is")
    stopped(played, "h1", "h1: h1/0 .*; see why: journalctl -u narwhal-engine@0")
    passed(served.play("gate-c-engines"))


# --- gate D


@contextlib.contextmanager
def with_way_in(lab: Lab, host: str) -> Iterator[None]:
    """A route to the fabric through a host, which Linux answers on any of its interfaces."""
    route = ["10.99.1.0/24", "via", network.address(host)]
    lab.control("ip", "route", "add", *route)
    try:
        yield
    finally:
        lab.control("ip", "route", "del", *route)


def test_a_link_that_is_too_slow(served: Fleet) -> None:
    played = served.play("gate-d-fabric", "-e", "narwhal_link_budget_gbps=100000")
    assert played.code == 2
    assert set(played.stops) == {"h1", "h2"}
    message = r"the link from h1 to h2 carries [\d.]+ Gbit/s by iperf3, 100000.0 are needed; see cables"
    assert re.search(message, played.stops["h1"]), played.stops


RDMA = """case "$*" in *10.99.1.*) ;; *) exec sleep 3600 ;; esac
echo ' #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]'
echo ' 65536      3726           0.00               97.67                0.186294'"""
"""What ib_write_bw prints, to whoever names a peer; the other side waits."""


def test_links_that_are_measured_over_rdma(served: Fleet, lab: Lab) -> None:
    with with_program(lab, "h1", "ib_write_bw", RDMA), with_program(lab, "h2", "ib_write_bw", RDMA):
        passed(served.play("gate-d-fabric", "-e", "narwhal_link_budget_gbps=97"))
    links = json.loads((served.directory / "evidence/d-fabric/h2.json").read_text())["links"]
    assert links == [{"peer": "h1", "gbps": 97.67, "tool": "ib_write_bw"}]


def test_a_side_channel_that_answers_from_outside_of_the_fabric(served: Fleet, lab: Lab) -> None:
    lab.ssh("h1", "systemctl stop narwhal-firewall")
    with with_way_in(lab, "h1"):
        played = served.play("gate-d-fabric", "-e", "narwhal_firewall=false")
        stopped(
            played,
            "h1",
            "port 8100, 8101, 5600, 5601 of h1 answers this machine, which is not of the fleet; install nftables",
        )
        passed(served.play("gate-d-fabric"))
    links = json.loads((served.directory / "evidence/d-fabric/h1.json").read_text())["links"]
    assert [link["peer"] for link in links] == ["h2"]
    assert links[0]["gbps"] > 0
    reach = f"timeout 5 bash -c '</dev/tcp/{network.address('h1', 'fabric')}/5600' && echo open"
    assert lab.ssh("h3", reach) == "open\n"


def test_a_way_that_leaves_the_fabric(served: Fleet, lab: Lab) -> None:
    detour = f"{network.address('h1', 'fabric')} via {network.address('h1')}"
    lab.ssh("h2", f"ip route add {detour}")
    try:
        played = served.play("gate-d-fabric")
    finally:
        lab.ssh("h2", f"ip route del {detour}")
    stopped(played, "h2", r"from h2 to 10.99.1.11 the way goes through eth0, not eth1; correct the routes")


# --- gate E


def test_an_engine_with_another_contract(served: Fleet, lab: Lab) -> None:
    record = "/etc/narwhal/launch/0.json"
    lab.ssh("h2", f'cp {record} /root/ && sed -i \'s/"4096"/"2048"/\' {record} && systemctl restart narwhal-engine@0')
    try:
        played = served.play("gate-e-attest")
        stopped(
            played, "h2", r"the engines have 2 contracts, 1 may be; h2/0 .*: max_model_len 2048, not 4096; give them"
        )
        passed(served.play("gate-e-attest", "-e", "narwhal_cohorts=2"))
        stopped(
            served.play("gate-c-engines"),
            "h2",
            "launch record of h2/0 on h2 is not the one that the fleet file renders",
        )
    finally:
        lab.ssh("h2", f"mv /root/0.json {record}")
    passed(served.play("gate-c-engines"))
    played = served.play("gate-e-attest")
    passed(played)
    assert played.changed == []
    seen = json.loads((served.directory / "evidence/e-attest/h2.json").read_text())
    assert len(seen["contracts"]) == 1
    assert seen["engines"][0]["attestation"]["process"]["pid"] > 0
    assert seen["engines"][0]["attestation"]["generation"]
