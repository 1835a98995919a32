"""What the callback plugin tells of a playbook as it runs: JSON Lines, turned into progress and a failure."""

import difflib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

_SHOWN = ("ok", "changed", "failed", "unreachable")
_OF_ANSIBLE = "Validating arguments against arg spec"
"""A task that Ansible adds to each role; it is told when it fails."""


@dataclass(frozen=True, slots=True)
class Stop:
    """A host at which something went wrong."""

    host: str
    task: str
    message: str
    unreachable: bool


@dataclass(slots=True)
class Seen:
    """What a playbook's events come to."""

    stops: list[Stop] = field(default_factory=list)
    """What went wrong and was not ignored, in order."""
    stats: dict[str, dict[str, int]] = field(default_factory=dict)
    """Counts of each host, at the end: `ok`, `changed`, `failures`, `unreachable`, `skipped`, `rescued`, `ignored`."""

    @property
    def changed(self) -> list[str]:
        """Hosts that were changed."""
        return [host for host, counts in self.stats.items() if counts.get("changed")]

    @property
    def stop(self) -> Stop | None:
        """The first that counts: one at a host which the end counts as failed, rather than rescued."""
        final = [stop for stop in self.stops if self._counts(stop)]
        return next(iter(final or self.stops), None)

    def _counts(self, stop: Stop) -> bool:
        counts = self.stats.get(stop.host, {})
        return bool(counts.get("unreachable" if stop.unreachable else "failures"))


class Follower:
    """Follows the events of one playbook: a line of progress for each task, the failures kept."""

    def __init__(self, say: Callable[[str], None], head: str, *, diff: bool = False) -> None:
        self.seen = Seen()
        self._say = say
        self._head = head
        self._diff = diff
        self._task = ""
        self._hosts: dict[str, list[str]] = {}

    def take(self, line: str) -> None:
        """One line of the callback; what is no event is passed over."""
        try:
            event = json.loads(line)
        except ValueError:
            return
        if not isinstance(event, dict):
            return
        kind = event.get("event")
        if kind == "task":
            self.end_task()
            self._task = str(event.get("task") or "").rpartition(" : ")[2]
        elif kind == "retry":
            self._say(f"{self._head}  {self._task}: {event.get('host')}: {event.get('message')}")
        elif kind == "stats":
            self.end_task()
            self.seen.stats = dict(event.get("hosts") or {})
        elif kind in _SHOWN:
            self._result(kind, event)

    def end_task(self) -> None:
        """Say what became of the task that went before."""
        if self._hosts and not self._task.startswith(_OF_ANSIBLE):
            counts = ", ".join(_counted(kind, self._hosts[kind]) for kind in _SHOWN if kind in self._hosts)
            self._say(f"{self._head}  {self._task}: {counts}")
        self._hosts.clear()

    def _result(self, kind: str, event: dict[str, Any]) -> None:
        self._hosts.setdefault(kind, []).append(str(event.get("host")))
        if self._diff and kind == "changed":
            for line in diff_lines(event.get("diff")):
                self._say(f"    {event.get('host')}: {line}")
        if kind in ("failed", "unreachable") and not event.get("ignored"):
            message = " ".join(str(event.get("message") or "it gives no reason").split())
            host = str(event.get("host"))
            self._say(f"{self._head}  {self._task}: {kind} at {host}: {message}")
            self.seen.stops.append(Stop(host, self._task, message, kind == "unreachable"))


def _counted(kind: str, hosts: list[str]) -> str:
    """How many hosts, or which one."""
    return f"{len(hosts)} {kind}" if len(hosts) > 1 else f"{kind} at {hosts[0]}"


def diff_lines(diff: object) -> Iterator[str]:
    """What `--diff` tells of a change, as lines of a unified diff without context."""
    for part in diff if isinstance(diff, list) else [diff]:
        if not isinstance(part, dict):
            continue
        before, after = (_lines(part.get(key)) for key in ("before", "after"))
        yield from (line for line in difflib.unified_diff(before, after, n=0, lineterm="") if _tells(line))


def _lines(value: object) -> list[str]:
    if value is None:
        return []
    return value.splitlines() if isinstance(value, str) else json.dumps(value, indent=1, sort_keys=True).splitlines()


def _tells(line: str) -> bool:
    return not line.startswith(("---", "+++", "@@"))
