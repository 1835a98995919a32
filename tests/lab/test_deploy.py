"""The gates as an operator goes through them: by `narwhal deploy`, from bare hosts to a fleet that serves.

The tests stand in the order of an operator's day, and each takes the hosts as the one before has left them.
"""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab import network
from tests.lab.conftest import SECRET
from tests.lab.hosts import Lab
from tests.lab.playing import Fleet, Said, reached
from tests.lab.tools import eventually

pytestmark = [pytest.mark.lab, pytest.mark.timeout(2400)]
COMPLETION = """
import json, os, urllib.request
body = {"model": "tiny", "prompt": "Narwhals live in", "max_tokens": 3}
url = os.environ["OPENAI_BASE_URL"] + "/completions"
request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
print(json.load(urllib.request.urlopen(request, timeout=60))["usage"]["completion_tokens"], "tokens")
"""
ENGINES = ("narwhal-engine@0", "narwhal-engine@1")
ROUTERS = ("narwhal-router", "narwhal-standby")
STATE = """
import http.client, json, socket
for role, port in (("primary", 8001), ("standby", 8003)):
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect("/var/lib/narwhal/admin-%d.sock" % port)
    connection.request("GET", "/narwhal/state")
    state = json.load(connection.getresponse())
    if state["lease"]["standing"] == "leader":
        print(role, *sorted(engine["id"] for engine in state["engines"]))
"""


def deployed(fleet: Fleet, *arguments: str) -> Said:
    said = fleet.operate("deploy", str(fleet.file), "--yes", *arguments)
    assert said.code == 0, said.err
    return said


def ran(said: Said) -> str:
    """The letters of the gates that ran and passed."""
    found = re.search("^passed: (.*)$", said.out, re.M)
    return found[1].replace(", ", "") if found else ""


def standing(fleet: Fleet) -> dict[str, tuple[str, str]]:
    """State and reason of each gate, as `narwhal gates` tells."""
    lines = fleet.operate("gates", str(fleet.file)).out.splitlines()
    return {line[0]: (line.split()[2], line.split(maxsplit=3)[3]) for line in lines}


def pids(lab: Lab, host: str, *units: str) -> list[str]:
    return lab.ssh(host, f"systemctl show -p MainPID --value {' '.join(units)}").split()


def leading(lab: Lab) -> tuple[str, set[str]]:
    """Which router leads, and the engines that it knows."""
    role, *engines = lab.ssh("h3", f"python3 -c '{STATE}'").split()
    return role, set(engines)


def unlocked(lab: Lab) -> bool:
    return all(lab.ssh(host, "ls /var/lib/narwhal/lock", check=False) == "" for host in lab.hosts())


def disturbed(fleet: Fleet, gate: str, task: str, disturb: Callable[["subprocess.Popen[str]"], object]) -> Said:
    """Deploy, and disturb it when it comes to a task of a gate."""
    earlier = len(fleet.runs(gate))

    def there() -> bool:
        return any(reached(run, task) for run in fleet.runs(gate)[earlier:])

    with fleet.begin("deploy", str(fleet.file), "--yes") as process:
        try:
            eventually(lambda: there() or process.poll() is not None, f"{task} of {gate}", 900)
            disturb(process)
            out, err = process.communicate(timeout=900)
        finally:
            process.kill()
    print(out, err, sep="\n")
    return Said(process.returncode, out, err)


def test_the_rendered_directory_is_clean(declared: Fleet) -> None:
    declared.render()
    lint = Path(sys.executable).with_name("ansible-lint")
    done = subprocess.run([lint, "-q"], cwd=declared.directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_dry_run_on_bare_hosts_shows_every_line_and_changes_nothing(declared: Fleet, lab: Lab) -> None:
    said = deployed(declared, "--check", "--through", "B")
    assert re.search(r"^    h1: \+ExecStart=/opt/narwhal/current/bin/narwhal engine run", said.err, re.M), said.err
    assert "B install  Make the revision current: 3 changed" in said.err
    there = "ls -d /opt/narwhal /etc/narwhal /etc/sysusers.d/narwhal.conf /var/lib/narwhal 2>/dev/null"
    assert [lab.ssh(host, there, check=False) for host in lab.hosts()] == ["", "", ""]
    assert not (declared.directory / "evidence").exists()


def test_bare_hosts_become_a_fleet_that_serves(served: Fleet, lab: Lab) -> None:
    assert {state for state, _ in standing(served).values()} == {"passed"}
    serving = served.evidence("g-serve")["serving"]
    assert serving["completion"] == {"tokens": 4}
    assert "narwhal bench" in serving["load"]["command"]
    assert serving["load"]["exit_code"] == 0
    (point,) = (served.directory / "bench" / "short").iterdir()
    assert json.loads((point / "BenchEvidence.json").read_text())["verdict"]["valid"] is True
    assert leading(lab) == ("primary", {"h1/0", "h1/1", "h2/0", "h2/1"})
    through = served.operate("tunnel", str(served.file), "--", sys.executable, "-c", COMPLETION)
    assert (through.code, "3 tokens" in through.out) == (0, True)
    assert unlocked(lab)


def test_a_key_is_in_no_file_but_one_that_is_root_s_alone(served: Fleet, lab: Lab) -> None:
    assert lab.ssh("h3", "stat -c %a:%U /etc/narwhal/environment") == "600:root\n"
    told = lab.ssh(
        "h3", f"grep -rl {SECRET} /etc /opt/narwhal /var/lib/narwhal /tmp; journalctl | grep {SECRET}", check=False
    )
    assert told == "/etc/narwhal/environment\n"
    kept = [path for path in served.directory.rglob("*") if path.is_file()]
    assert [path for path in kept if SECRET.encode() in path.read_bytes()] == []


def test_a_second_run_passes_every_gate_over(served: Fleet) -> None:
    said = deployed(served)
    assert (ran(said), said.out.strip()) == ("", "nothing had to run")
    assert "nothing differs" in served.operate("diff", str(served.file)).out


def test_another_model_concerns_every_gate(served: Fleet) -> None:
    text = served.file.read_text()
    served.edit("  path: /models/tiny\n", f"  path: /models/tiny\n  digest: sha256:{'0' * 64}\n")
    try:
        assert {letter: why for letter, (state, why) in standing(served).items() if state == "stale"} == {
            letter: "model changed" if letter == "A" else "model, launch of h1/0 and 3 more changed"
            for letter in "ABCDEFG"
        }
        told = served.operate("diff", str(served.file), "--check")
    finally:
        served.file.write_text(text)
    assert told.code == 1
    assert re.search(f"^    .*digest.*{'0' * 64}", told.err, re.M)
    assert re.search("h[12]: The model is there, and is the approved one: /models/tiny on h[12] is sha256:", told.err)


def test_a_setting_of_the_router_concerns_gate_g_alone(served: Fleet, lab: Lab) -> None:
    before = pids(lab, "h3", *ROUTERS)
    lab.ssh("h3", "touch /etc/systemd/system/narwhal-standby.service")  # as a run that failed afterwards has left it
    served.edit("routers:\n", "serving: {margin: 0.9}\nrouters:\n")
    assert standing(served)["G"] == ("stale", "serving changed")
    told = deployed(served, "--check", "--only", "G").err
    assert [line for line in told.splitlines() if re.match(r"    h\d: [+-]\w", line)] == [
        "    h3: +serving: {margin: 0.9}"
    ]
    assert ran(deployed(served)) == "G"
    after = pids(lab, "h3", *ROUTERS)
    assert after[0] == before[0]
    assert after[1] != before[1]


def test_an_engine_argument_a_host_that_is_cut_off_and_ctrl_c(served: Fleet, lab: Lab) -> None:
    served.edit("  per_host: 2\n", "  per_host: 2\n  args: {block-size: 32}\n")
    found = standing(served)
    assert "".join(letter for letter, (state, _) in found.items() if state == "stale") == "BCDEFG"
    assert found["B"][1] == "launch of h1/0 and 3 more changed"

    said = disturbed(served, "c-engines", "Start the engines", lambda _: network.cut("h2"))
    network.mend("h2")
    assert said.code == 1
    assert re.search("gate c-engines unreachable: h2: .*see that it is up and reachable", said.err), said.err
    assert f"then `narwhal deploy {served.file}` goes on with C engines" in said.err

    said = disturbed(served, "d-fabric", "Send", lambda process: process.send_signal(signal.SIGINT))
    assert said.code == 130
    assert "gate d-fabric: interrupted by Ctrl-C" in said.err
    assert unlocked(lab)
    assert [state for state, _ in standing(served).values()][:4] == ["passed", "passed", "passed", "failed"]

    assert '"32"' in lab.ssh("h2", "cat /etc/narwhal/launch/1.json")


def test_a_host_leaves_and_comes_back_while_the_others_serve(served: Fleet, lab: Lab) -> None:
    before = pids(lab, "h1", *ENGINES)
    text = served.file.read_text()
    purged = served.operate("purge", str(served.file), "--limit", "h2", "--confirm", "lab")
    assert purged.code == 0, purged.err
    served.edit(next(line for line in text.splitlines(keepends=True) if "{name: h2," in line), "")
    served.edit("split: {prefill: 2, decode: 2}", "split: {prefill: 1, decode: 1}")
    assert ran(deployed(served)) == "ADEFG"
    assert [served.evidence(gate)["changed"] for gate in ("a-discover", "e-attest", "f-profile")] == [[], [], []]
    leader, engines = leading(lab)
    assert engines == {"h1/0", "h1/1"}
    routers = pids(lab, "h3", *ROUTERS)

    served.file.write_text(text)
    assert ran(deployed(served, "--through", "C", "--limit", "h2")) == "ABC"
    assert [served.evidence(gate)["limited_to"] for gate in ("b-install", "c-engines")] == [["h2"], ["h2"]]
    assert [served.evidence(gate)["changed"] for gate in ("b-install", "c-engines")] == [["h2"], ["h2"]]
    assert ran(deployed(served)) == "DEFG"
    assert leading(lab) == (leader, {"h1/0", "h1/1", "h2/0", "h2/1"})
    assert (pids(lab, "h1", *ENGINES), pids(lab, "h3", *ROUTERS)) == (before, routers)
