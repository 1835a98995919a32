"""The callback: what becomes of what Ansible says, in a run of ansible-playbook on this machine."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from narwhal.documents import data_path
from tests.playbooks.loading import load

plugin = load("callback_plugins", "narwhal_jsonl.py")
PLAYBOOK = """
- name: Try
  hosts: localhost
  connection: local
  gather_facts: false
  tasks:
    - {name: Fine, ansible.builtin.debug: {msg: "two\\nlines"}}
    - {name: Hidden, ansible.builtin.debug: {msg: secret}, no_log: true}
    - {name: Tolerated, ansible.builtin.fail: {msg: so what}, ignore_errors: true}
    - name: Slices
      ansible.builtin.command:
        argv: [/bin/sh, -c, "test -e flag && echo '{}' || { touch flag; echo '{\\"progress\\": \\"half\\"}'; }"]
      register: slices
      until: (slices.stdout | from_json).progress is not defined
      retries: 3
      delay: 0
    - {name: Broken, ansible.builtin.fail: {msg: "what; what to do"}}
"""


def run(folder: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    (folder / "gate-x-try.yml").write_text(PLAYBOOK)
    variables = {
        "ANSIBLE_CALLBACK_PLUGINS": str(data_path("playbooks", "callback_plugins")),
        "ANSIBLE_CALLBACKS_ENABLED": "narwhal_jsonl",
        "ANSIBLE_HOME": str(folder / ".ansible"),
        "ANSIBLE_NOCOLOR": "1",
    }
    argv = [
        str(Path(sys.executable).parent / "ansible-playbook"),
        "-i",
        "localhost,",
        "-e",
        f"ansible_python_interpreter={sys.executable}",
    ]
    argv.append("gate-x-try.yml")
    env = os.environ | variables | environment
    return subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, timeout=120)


def test_events_of_a_playbook(tmp_path: Path) -> None:
    done = run(tmp_path, NARWHAL_EVENTS=str(tmp_path / "events"))
    assert done.returncode == 2
    events = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    assert {event["gate"] for event in events} == {"gate-x-try"}
    assert events[0]["event"] == "playbook"
    told = [(e["event"], e["task"], e["message"]) for e in events if "host" in e]
    assert told == [
        ("ok", "Fine", "two lines"),
        ("ok", "Hidden", "(not shown)"),
        ("failed", "Tolerated", "so what"),
        ("retry", "Slices", "half"),
        ("changed", "Slices", ""),
        ("failed", "Broken", "what; what to do"),
    ]
    assert [event["ignored"] for event in events if event["event"] == "failed"] == [True, False]
    assert events[-1]["event"] == "stats"
    assert events[-1]["hosts"]["localhost"]["failures"] == 1
    assert "secret" not in (tmp_path / "events").read_text()


def test_whoever_runs_a_playbook_by_hand_is_told_why_it_stopped(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.stdout.rstrip().splitlines()[-1] == "gate-x-try stopped: localhost: what; what to do"


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (
            "Failed to connect to the host via ssh: @@@\nWARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!\n",
            "is not the one",
        ),
        ("No ED25519 host key is known for 10.0.0.1 ...\nHost key verification failed.", "no host key is pinned"),
        ("ops@10.0.0.1: Permission denied (publickey).", "SSH refuses this user or key"),
        ("ssh: connect to host 10.0.0.1 port 22: Connection refused", "nothing answers on its SSH port"),
        ("ssh: connect to host 10.0.0.1 port 22: Connection timed out", "does not answer in time"),
        ("something\nelse", "something else"),
    ],
)
def test_what_ssh_says_is_said_in_one_line_with_what_to_do(said: str, meant: str) -> None:
    line = plugin.say({"msg": said}, "unreachable")
    assert meant in line
    assert "\n" not in line


def test_the_item_that_was_unreachable_is_the_one_that_is_told() -> None:
    items = [{"msg": "fine"}, {"unreachable": True, "msg": "Timeout (12s) waiting for privilege escalation prompt:"}]
    line = plugin.say({"msg": "All items completed", "results": items}, "unreachable")
    assert line == "SSH or sudo stopped answering; see that it is up and reachable, then run this again"


def test_differences_are_told_by_path_before_and_after() -> None:
    copied: dict[str, Any] = {
        "diff": [{"before": "a\n", "after": "b\n", "after_header": "/tmp/x.j2"}, {"prepared": "text alone"}]
    }
    copied["invocation"] = {"module_args": {"dest": "/etc/x"}}
    made = {"before": {"path": "/opt/y", "state": "absent"}, "after": {"path": "/opt/y", "state": "directory"}}
    result = {"results": [copied, {"diff": made}, {"diff": []}, {}]}
    assert plugin.differences(result) == [
        {"path": "/etc/x", "before": "a\n", "after": "b\n"},
        {"path": "/opt/y", **made},
    ]
