"""Tells what a playbook does as JSON Lines, and at the end, in one line a host, why it stopped.

The lines go to the file that NARWHAL_EVENTS names; without it only the last words are said. docs/gates.md lists them.
"""

from __future__ import annotations

DOCUMENTATION = """
name: narwhal_jsonl
type: notification
short_description: Events of a gate as JSON Lines
description:
  - Appends one JSON object a line for each event of a playbook to the file named by the variable NARWHAL_EVENTS.
  - Says at the end, in one line for each host that stopped, what is wrong, where, and what to do.
options: {}
"""

import json
import os
import time

from ansible.plugins.callback import CallbackBase

UNREACHABLE = (
    (
        "REMOTE HOST IDENTIFICATION HAS CHANGED",
        "its host key is not the one that the fleet file pins; "
        "compare it at the host (ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub), then correct hosts.ssh.host_key",
    ),
    (
        "Host key verification failed",
        "no host key is pinned for it; read it at the host (/etc/ssh/ssh_host_ed25519_key.pub) "
        "and put it into hosts.ssh.host_key of the fleet file",
    ),
    (
        "Permission denied",
        "SSH refuses this user or key; try ssh by hand, then correct hosts.ssh or load the key",
    ),
    ("Connection refused", "nothing answers on its SSH port; start sshd there, or correct hosts.ssh.port"),
    ("Could not resolve", "its name cannot be resolved; correct hosts.ssh.address"),
    ("No route to host", "there is no route to it; see that it is up and reachable, then run this again"),
    ("timed out", "SSH does not answer in time; see that it is up and reachable, then run this again"),
    (
        "waiting for privilege escalation",
        "SSH or sudo stopped answering; see that it is up and reachable, then run this again",
    ),
    ("not responding", "SSH stopped answering; see that it is up and reachable, then run this again"),
)
"""What ssh says, and what that means."""


class CallbackModule(CallbackBase):
    """The callback."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "narwhal_jsonl"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self):
        super().__init__()
        path = os.environ.get("NARWHAL_EVENTS")
        self.file = open(path, "a", encoding="utf-8") if path else None  # noqa: SIM115 - as long as Ansible runs
        self.gate = self.play = None
        self.stops = {}

    # --- what Ansible tells

    def v2_playbook_on_start(self, playbook):
        self.gate = os.path.basename(playbook._file_name).rpartition(".")[0]
        self.write("playbook")

    def v2_playbook_on_play_start(self, play):
        self.play = play.get_name().strip()
        self.write("play")

    def v2_playbook_on_task_start(self, task, is_conditional):
        self.write("task", task=task.get_name().strip())

    def v2_playbook_on_handler_task_start(self, task):
        self.v2_playbook_on_task_start(task, False)

    def v2_runner_on_ok(self, result):
        self.host(result, "changed" if result._result.get("changed") else "ok")

    def v2_runner_on_skipped(self, result):
        self.host(result, "skipped")

    def v2_runner_on_failed(self, result, ignore_errors=False):
        message = self.host(result, "failed", ignored=bool(ignore_errors))
        if not ignore_errors:
            self.stops[result._host.get_name()] = message

    def v2_runner_on_unreachable(self, result):
        self.stops[result._host.get_name()] = self.host(result, "unreachable")

    def v2_runner_retry(self, result):
        self.host(result, "retry")

    def v2_playbook_on_stats(self, stats):
        hosts = {host: stats.summarize(host) for host in sorted(stats.processed)}
        self.write("stats", hosts=hosts)
        for host, message in sorted(self.stops.items()):
            if hosts.get(host, {}).get("failures") or hosts.get(host, {}).get("unreachable"):
                self._display.display(f"{self.gate} stopped: {host}: {message}", color="red")

    # --- what is told on

    def host(self, result, status, **fields):
        """Write the result of one task on one host; the line that was said of it."""
        hidden = result._task.no_log or result._result.get("_ansible_no_log")
        message = "(not shown)" if hidden else say(result._result, status)
        if status == "changed" and not hidden:
            fields["diff"] = differences(result._result)
        task, host = result._task.get_name().strip(), result._host.get_name()
        self.write(status, task=task, host=host, status=status, message=message, **fields)
        return message

    def write(self, event, **fields):
        """One line, in one write."""
        if self.file is not None:
            line = {"at": round(time.time(), 3), "event": event, "gate": self.gate, "play": self.play, **fields}
            self.file.write(json.dumps(line, default=str) + "\n")
            self.file.flush()


def say(result, status):
    """The one line of a result."""
    if status == "retry":
        return progress(result.get("stdout")) or "attempt {} of {}".format(
            result.get("attempts"), result.get("retries")
        )
    wrong = {"failed": "failed", "unreachable": "unreachable"}.get(status)
    if wrong and result.get("results"):
        return say(next((one for one in result["results"] if one.get(wrong)), {"msg": result.get("msg")}), status)
    text = str(result.get("msg") or "")
    if status == "unreachable":
        text = next((meaning for words, meaning in UNREACHABLE if words in text), text)
    if status == "failed" and result.get("stderr") and (not text or "non-zero return code" in text):
        text = result["stderr"].strip().splitlines()[-1]
    return " ".join(text.split())


def progress(stdout):
    """How far a task that goes on in slices is, when its output says so."""
    try:
        return json.loads(stdout.strip().splitlines()[-1])["progress"]
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return None


def differences(result):
    """What changed, of every item of a task."""
    return [
        {"path": path_of(one, diff), "before": diff.get("before"), "after": diff.get("after")}
        for one in [result, *result.get("results", [])]
        for diff in (one["diff"] if isinstance(one.get("diff"), list) else [one.get("diff")])
        if isinstance(diff, dict) and ("before" in diff or "after" in diff)
    ]


def path_of(result, diff):
    """The file that a difference is of."""
    arguments = result.get("invocation", {}).get("module_args", {})
    told = [result.get("dest"), result.get("path"), arguments.get("dest"), arguments.get("path")]
    after = diff.get("after")
    told.append(after.get("path") if isinstance(after, dict) else None)
    return next((path for path in told if path), diff.get("after_header"))
