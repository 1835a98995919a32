"""The days after on real hosts: a model is distributed, a fleet is rolled under load, brought back, stopped, purged.

The tests stand in the order of an operator's days, and each takes the hosts as the one before has left them.
"""

import contextlib
import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import client, network
from tests.lab.hosts import Lab
from tests.lab.playing import Fleet, Played, Said
from tests.lab.tools import eventually

pytestmark = [pytest.mark.lab, pytest.mark.timeout(2400)]
PAIRED = {
    "per_host: 1": "per_host: 2",
    "split: {prefill: 1, decode: 1}": "split: {prefill: 2, decode: 2}",
    "  primary: h3\n": (
        "  primary: h3\n  standby: h3\n  bind: all\n  standby_port: 8002\n  admin: {standby_port: 8003}\n"
        "serving: {shutdown_s: 30}\n"
    ),
}
"""What makes a fleet that can be rolled without a failed request: two engines of each role, two routers."""
SEEN = r"""
find / -xdev \( -path /run -o -path /tmp -o -path /var/log -o -path /var/tmp -o -path '*/.ansible' -o -path /models \
  -o -path /var/lib/systemd -o -name '.pwd.lock' -o -name 'passwd-' -o -name 'group-' -o -name 'shadow-' \
  -o -name 'gshadow-' -o -name '.updated' \) -prune -o -printf '%p %y %m %u:%g\n' \
  | grep -v '^/etc/sysusers.d d'
getent passwd; getent group; nft list ruleset; systemctl list-units --all --plain --no-legend 'narwhal-*'
ls -d /run/narwhal* /tmp/narwhal* 2>/dev/null; true
"""
COHORTS = """
import http.client, json, socket
for port in (8001, 8003):
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect("/var/lib/narwhal/admin-%d.sock" % port)
    connection.request("GET", "/narwhal/state")
    state = json.load(connection.getresponse())
    if state["lease"]["standing"] == "leader":
        print(*{engine["cohort"] for engine in state["engines"] if engine["state"] == "live"})
"""


@pytest.fixture(scope="module")
def before(lab: Lab) -> dict[str, set[str]]:
    """Everything of each host that a gate could have left, before there is any."""
    return {host: seen(lab, host) for host in lab.hosts()}


@pytest.fixture(scope="module")
def rolled(before: dict[str, set[str]], fleet: Fleet, lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    """A fleet of four engines and two routers, with the bundle of the session's."""
    mine = Fleet(lab, tmp_path_factory.mktemp("days"))
    mine.take_bundle(fleet)
    for old, new in PAIRED.items():
        mine.edit(old, new)
    mine.render()
    return mine


def another_revision(fleet: Fleet) -> str:
    """Add something to the bundle and approve it; its digest."""
    with tarfile.open(fleet.directory / "bundle.tar", "a") as bundle:
        bundle.addfile(tarfile.TarInfo("second"), io.BytesIO())
    digest = "sha256:" + hashlib.sha256((fleet.directory / "bundle.tar").read_bytes()).hexdigest()
    fleet.file.write_text(re.sub('revision: ".*"', f'revision: "{digest}"', fleet.file.read_text()))
    return digest


def seen(lab: Lab, host: str) -> set[str]:
    return set(lab.ssh(host, SEEN).splitlines())


def passed(played: Played) -> None:
    assert played.code == 0, played.stops


def unchanged(played: Played) -> None:
    passed(played)
    assert played.changed == []


def pids(lab: Lab, host: str) -> str:
    return lab.ssh(host, "systemctl show -p MainPID --value narwhal-engine@0 narwhal-engine@1")


def current(lab: Lab, host: str) -> str:
    return lab.ssh(host, "cat /opt/narwhal/current/REVISION").strip()


def cohorts(lab: Lab) -> set[str]:
    """The contracts of the engines that have work, as the router that leads tells."""
    return set(lab.ssh("h3", f"python3 -c '{COHORTS}'", check=False).split())


def operated(said: Said) -> str:
    """What a verb said that did what it was told to."""
    assert said.code == 0, said.err
    return said.out


def done(played: Played, task: str) -> list[str]:
    """The hosts on which a task changed something, in order."""
    return [host for host, name in played.changed if name.endswith(task)]


@contextlib.contextmanager
def load(folder: Path) -> Iterator[dict[str, int]]:
    """Clients of both routers all the while; what became of their requests is there at the end."""
    outcomes: dict[str, int] = {}
    stop, printed = folder / "stop", folder / "printed"
    stop.unlink(missing_ok=True)
    urls = [f"http://{network.address('h3')}:{port}" for port in (8000, 8002)]
    argv = ["ip", "netns", "exec", network.CONTROLLER, sys.executable, client.__file__, str(stop), *urls]
    with printed.open("w") as file:
        process = subprocess.Popen(argv, stdout=file)
        try:
            yield outcomes
        finally:
            stop.touch()
            process.wait(300)
    outcomes.update(json.loads(printed.read_text()))


def served_all(outcomes: dict[str, int]) -> None:
    assert set(outcomes) == {"whole"}, outcomes
    assert outcomes["whole"] > client.STREAMS


def test_a_model_is_distributed_from_the_host_that_has_it(rolled: Fleet, lab: Lab) -> None:
    lab.ssh("h1", "mkdir -p /models/tiny/sub && head -c 9000000 /dev/urandom > '/models/tiny/sub/some weights'")
    digest = "cd /models/tiny && sha256sum 'sub/some weights'"
    dry = rolled.play("distribute-model", "-e", "narwhal_model_from=h1", "--check")
    passed(dry)
    assert [host for host, _ in dry.changed] == ["h2"]
    passed(rolled.play("distribute-model", "-e", "narwhal_model_from=h1"))
    assert lab.ssh("h1", digest) == lab.ssh("h2", digest)
    assert lab.ssh("h2", "ls -A /models/tiny").split() == ["config.json", "sub"]
    unchanged(rolled.play("distribute-model", "-e", "narwhal_model_from=h1"))


def test_nobody_has_the_approved_model(rolled: Fleet) -> None:
    played = rolled.play("distribute-model")
    assert played.code == 2
    assert "is the approved one on none of h1, h2; put it on one of them" in played.stops["h1"]


def test_the_gates_bring_a_fleet_that_serves(rolled: Fleet, lab: Lab) -> None:
    for gate in ("gate-b-install", "gate-c-engines", "gate-d-fabric", "gate-g-serve"):
        passed(rolled.play(gate))
    targets = json.loads(lab.ssh("h3", "cat /etc/narwhal/prometheus/targets.json"))
    assert [group["labels"].get("engine") for group in targets][:4] == ["h1/0", "h1/1", "h2/0", "h2/1"]


def test_a_roll_to_another_contract_loses_no_request(rolled: Fleet, lab: Lab, tmp_path: Path) -> None:
    revision = another_revision(rolled)
    rolled.change("  per_host: 2\n", "  per_host: 2\n  args: {block-size: 32}\n")
    before = {host: pids(lab, host) for host in ("h1", "h2")}
    dry = rolled.play("roll", "--check", "--diff", "--limit", "h1")
    passed(dry)
    assert {host for host, _ in dry.changed} == {"h1"}
    assert {host: pids(lab, host) for host in ("h1", "h2")} == before
    with load(tmp_path) as outcomes:
        play = rolled.start("roll")
        try:
            eventually(lambda: len(cohorts(lab)) == 2, "two contracts beside each other", 1200)
        finally:
            played = play.end(2000)
    passed(played)
    served_all(outcomes)
    assert done(played, "Drain the engines") == done(played, "Restart the engines") == ["h1", "h2"]
    assert len(cohorts(lab)) == 1
    for host in lab.hosts():
        assert current(lab, host) == revision
    unchanged(rolled.play("roll"))


def test_a_complete_roll_is_rolled_back_without_a_failed_request(rolled: Fleet, lab: Lab, tmp_path: Path) -> None:
    with load(tmp_path) as outcomes:
        said = rolled.operate("rollback", str(rolled.file), "--yes")
    assert "rollback: done; h1, h2, h3 changed" in operated(said)
    assert f"{rolled.file} still asks for the other state" in said.out
    for host in ("h1", "h2"):
        assert f"Drain the engines: changed at {host}" in said.err
        assert "block-size" not in lab.ssh(host, "cat /etc/narwhal/launch/*.json")
    served_all(outcomes)
    assert len(cohorts(lab)) == 1
    assert rolled.evidence("rollback")["facts"]["h2"]["brought_back"] != []


def test_a_roll_stops_at_the_first_bad_host(rolled: Fleet, lab: Lab, tmp_path: Path) -> None:
    before = {host: (pids(lab, host), current(lab, host)) for host in ("h1", "h2")}
    rolled.edit("args: {block-size: 32}", "args: {fault: nonsense}")
    with load(tmp_path) as outcomes:
        said = rolled.operate("roll", str(rolled.file), "--yes")
    assert said.code == 1
    assert "roll failed: h1: " in said.err
    assert re.search('h1 is the first bad host, at ".*Restart the engines": .*narwhal rollback', said.err)
    served_all(outcomes)
    assert (pids(lab, "h2"), current(lab, "h2")) == before["h2"]


def test_a_rollback_undoes_that_roll_alone(rolled: Fleet, lab: Lab, tmp_path: Path) -> None:
    with load(tmp_path) as outcomes:
        said = rolled.operate("rollback", str(rolled.file), "--yes")
    assert "rollback: done; h1 changed" in operated(said)
    served_all(outcomes)
    assert "nonsense" not in lab.ssh("h1", "cat /etc/narwhal/launch/0.json")
    unchanged(rolled.play("rollback"))


def test_what_was_stopped_stays_stopped_until_it_is_deployed_again(rolled: Fleet, lab: Lab) -> None:
    running = "systemctl list-units --plain --no-legend --state=running 'narwhal-*'"
    assert lab.ssh("h3", running) != ""
    said = rolled.operate("stop", str(rolled.file), "--yes")
    assert f"`narwhal deploy {rolled.file}` starts them again" in operated(said)
    for host in lab.hosts():
        assert lab.ssh(host, running) == ""
        assert lab.ssh(host, "ls /etc/systemd/system/multi-user.target.wants | grep narwhal", check=False) == ""
    unchanged(rolled.play("stop"))
    rolled.change("  args: {fault: nonsense}\n", "")
    for gate in ("gate-b-install", "gate-c-engines"):
        passed(rolled.play(gate))
    assert lab.ssh("h1", running) != ""


def test_a_purge_leaves_nothing_behind(rolled: Fleet, lab: Lab, before: dict[str, set[str]]) -> None:
    played = rolled.play("purge", "-e", "narwhal_purge=another")
    assert played.code == 2
    assert "this removes the fleet lab from its hosts, and you named another" in played.stops["h1"]
    passed(rolled.play("purge", "-e", "narwhal_purge=lab", "--check"))
    assert lab.ssh("h1", "ls -d /opt/narwhal") == "/opt/narwhal\n"
    said = rolled.operate("purge", str(rolled.file), "--confirm", "lab")
    assert "purge: done; h1, h2, h3 changed" in operated(said)
    for host in lab.hosts():
        assert sorted(seen(lab, host) ^ before[host]) == []
    unchanged(rolled.play("purge", "-e", "narwhal_purge=lab"))
