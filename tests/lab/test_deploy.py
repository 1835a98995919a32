"""The gates as an operator goes through them: by `narwhal deploy`, from bare hosts to a fleet that serves.

The tests stand in the order of an operator's day, and each takes the hosts as the one before has left them.
"""

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab import network
from tests.lab.hosts import Lab
from tests.lab.playing import Fleet, Said
from tests.lab.tools import eventually

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1800)]
SERVING = {
    "  per_host: 1": "  per_host: 2\n  api_key: {env: ENGINES_KEY}",
    "split: {prefill: 1, decode: 1}": "split: {prefill: 2, decode: 2}",
    "  primary: h3\n": (
        "  primary: h3\n  standby: h3\n  standby_port: 8002\n  admin: {standby_port: 8003}\n"
        "benchmark:\n  validity: {lag_p99_s: 30, stolen_share: 1}\n  points:\n"
        "    - {name: short, traffic: {kind: rate, rate_rps: 4, prompt_tokens: 50, output_tokens: 4}, duration_s: 3}\n"
    ),
}
"""Two engines a host, a standby, one benchmark point, and a key that comes from a variable."""
SECRET = "tell-nobody-of-this-key"
COMPLETION = """
import json, os, urllib.request
body = {"model": "tiny", "prompt": "Narwhals live in", "max_tokens": 3}
url = os.environ["OPENAI_BASE_URL"] + "/completions"
request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
print(json.load(urllib.request.urlopen(request, timeout=60))["usage"]["completion_tokens"], "tokens")
"""
STATE = """
import http.client, json, socket
connection = http.client.HTTPConnection("localhost")
connection.sock = socket.socket(socket.AF_UNIX)
connection.sock.connect("/var/lib/narwhal/admin-8001.sock")
connection.request("GET", "/narwhal/state")
state = json.load(connection.getresponse())
print(json.dumps([state["lease"]["standing"], sorted(engine["id"] for engine in state["engines"])]))
"""


@pytest.fixture(scope="module")
def mine(fleet: Fleet, lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    """A fleet file that nothing was done with yet; the bundle is there."""
    found = Fleet(lab, tmp_path_factory.mktemp("deploy"))
    found.take_bundle(fleet)
    for old, new in SERVING.items():
        found.edit(old, new)
    (found.file.parent / "secrets.yml").write_text(f"narwhal_environment: {{ENGINES_KEY: {SECRET}}}\n")
    return found


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


def engines_of(lab: Lab) -> list[object]:
    """Standing of the primary, and the engines that it knows."""
    found: list[object] = json.loads(lab.ssh("h3", f"python3 -c '{STATE}'"))
    return found


def unlocked(lab: Lab) -> bool:
    return all(lab.ssh(host, "ls /var/lib/narwhal/lock", check=False) == "" for host in lab.hosts())


def test_the_rendered_directory_is_clean(mine: Fleet) -> None:
    mine.render()
    lint = Path(sys.executable).with_name("ansible-lint")
    shutil.copy(Path(__file__).parents[2] / ".ansible-lint", mine.directory)
    argv = [lint, "--offline", "--profile", "production", "-q"]
    done = subprocess.run(argv, cwd=mine.directory, capture_output=True, text=True, check=False)
    (mine.directory / ".ansible-lint").unlink()
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_dry_run_on_bare_hosts_shows_every_line_and_changes_nothing(mine: Fleet, lab: Lab) -> None:
    said = deployed(mine, "--check", "--through", "B")
    assert re.search(r"^    h1: \+.*ExecStart=/opt/narwhal/current/bin/narwhal engine run", said.err, re.M), said.err
    assert "B install  Make the revision current: 3 changed" in said.err
    there = "ls -d /opt/narwhal /etc/narwhal /etc/sysusers.d/narwhal.conf /var/lib/narwhal 2>/dev/null"
    assert [lab.ssh(host, there, check=False) for host in lab.hosts()] == ["", "", ""]
    assert not (mine.directory / "evidence").exists()


def test_bare_hosts_become_a_fleet_that_serves(mine: Fleet, lab: Lab) -> None:
    said = deployed(mine, "--vars", "secrets.yml")
    assert ran(said) == "ABCDEFG"
    serving = mine.evidence("g-serve")["serving"]
    assert serving["completion"] == {"tokens": 4}
    assert "narwhal bench" in serving["load"]["command"]
    assert serving["load"]["exit_code"] == 0
    assert list((mine.directory / "bench" / "short").iterdir()) != []
    assert engines_of(lab) == ["leader", ["h1/0", "h1/1", "h2/0", "h2/1"]]
    through = mine.operate("tunnel", str(mine.file), "--", sys.executable, "-c", COMPLETION)
    assert (through.code, "3 tokens" in through.out) == (0, True)
    assert unlocked(lab)
    assert lab.ssh("h3", "stat -c %a:%U /etc/narwhal/environment") == "600:root\n"
    kept = [path for path in mine.directory.rglob("*") if path.is_file()]
    assert [path for path in kept if SECRET.encode() in path.read_bytes()] == []


def test_a_second_run_passes_every_gate_over(mine: Fleet) -> None:
    said = deployed(mine)
    assert (ran(said), said.out.strip()) == ("", "nothing had to run")
    assert {state for state, _ in standing(mine).values()} == {"passed"}
    assert "nothing differs" in mine.operate("diff", str(mine.file)).out


def test_another_model_concerns_every_gate(mine: Fleet) -> None:
    text = mine.file.read_text()
    mine.edit("  path: /models/tiny\n", f"  path: /models/tiny\n  digest: sha256:{'0' * 64}\n")
    try:
        assert {letter: why for letter, (state, why) in standing(mine).items() if state == "stale"} == {
            letter: "model changed" if letter == "A" else "model, launch of h1/0 and 3 more changed"
            for letter in "ABCDEFG"
        }
        told = mine.operate("diff", str(mine.file), "--check")
    finally:
        mine.file.write_text(text)
    assert told.code == 1
    assert re.search(f"^    .*digest.*{'0' * 64}", told.err, re.M)
    assert re.search("h1: The model is there, and is the approved one: /models/tiny on h1 is sha256:", told.err)


def test_a_setting_of_the_router_concerns_gate_g_alone(mine: Fleet, lab: Lab) -> None:
    units = ["narwhal-router", "narwhal-standby"]
    before = pids(lab, "h3", *units)
    lab.ssh("h3", "touch /etc/systemd/system/narwhal-standby.service")  # as a run that failed afterwards has left it
    mine.edit("routers:\n", "serving: {margin: 0.9}\nrouters:\n")
    assert standing(mine)["G"] == ("stale", "serving changed")
    assert ran(deployed(mine)) == "G"
    after = pids(lab, "h3", *units)
    assert after[0] == before[0]
    assert after[1] != before[1]


def test_an_engine_argument_a_host_that_is_cut_off_and_ctrl_c(mine: Fleet, lab: Lab) -> None:
    mine.edit("  per_host: 2\n", "  per_host: 2\n  args: {block-size: 32}\n")
    found = standing(mine)
    assert "".join(letter for letter, (state, _) in found.items() if state == "stale") == "BCDEFG"
    assert found["B"][1] == "launch of h1/0 and 3 more changed"

    said = interrupted(mine, "c-engines", "Start the engines", lambda _: network.cut("h2"))
    network.mend("h2")
    assert said.code == 1
    assert re.search("gate c-engines unreachable: h2: .*see that it is up and reachable", said.err), said.err
    assert f"then `narwhal deploy {mine.file}` goes on with C engines" in said.err

    said = interrupted(mine, "d-fabric", "Send", lambda process: process.send_signal(signal.SIGINT))
    assert said.code == 130
    assert "gate d-fabric: interrupted by Ctrl-C" in said.err
    assert unlocked(lab)
    assert [state for state, _ in standing(mine).values()][:4] == ["passed", "passed", "passed", "failed"]

    assert ran(deployed(mine)) == "DEFG"
    assert '"32"' in lab.ssh("h2", "cat /etc/narwhal/launch/1.json")


def interrupted(fleet: Fleet, gate: str, task: str, disturb: Callable[["subprocess.Popen[str]"], object]) -> Said:
    """Deploy, and disturb it when it comes to a task."""
    with fleet.begin("deploy", str(fleet.file), "--yes") as process:
        eventually(lambda: fleet.began(gate, task) or process.poll() is not None, f"{task} of {gate}", 900)
        disturb(process)
        out, err = process.communicate(timeout=900)
    print(out, err, sep="\n")
    return Said(process.returncode, out, err)


def test_a_host_leaves_and_comes_back_while_the_others_serve(mine: Fleet, lab: Lab) -> None:
    text = mine.file.read_text()
    before = pids(lab, "h1", "narwhal-engine@0", "narwhal-engine@1"), pids(lab, "h3", "narwhal-router")
    line = next(line for line in text.splitlines(keepends=True) if "{name: h2," in line)
    mine.edit(line, "")
    mine.edit("split: {prefill: 2, decode: 2}", "split: {prefill: 1, decode: 1}")
    assert ran(deployed(mine)) == "ADEFG"
    assert engines_of(lab) == ["leader", ["h1/0", "h1/1"]]
    mine.file.write_text(text)
    deployed(mine, "--through", "C", "--limit", "h2")
    assert mine.evidence("c-engines")["limited_to"] == ["h2"]
    deployed(mine)
    assert engines_of(lab) == ["leader", ["h1/0", "h1/1", "h2/0", "h2/1"]]
    assert before == (pids(lab, "h1", "narwhal-engine@0", "narwhal-engine@1"), pids(lab, "h3", "narwhal-router"))
