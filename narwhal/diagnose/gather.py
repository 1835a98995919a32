"""The sources of a diagnostic bundle: each a name, a file in the archive, and how it is collected."""

import json
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import narwhal
from narwhal.diagnose.client import AdminClient
from narwhal.diagnose.history import FIRST_PLACE, journal_files
from narwhal.diagnose.logs import Wish, command, names, place_of, unit_script
from narwhal.documents import data_path
from narwhal.fleet import Expanded

LIMIT_S = 20.0
LIMIT_BYTES = 16 * 1024 * 1024
"""Of each source."""
SSH_S = 15.0
PACKAGES = ("msgspec", "prometheus-client", "pydantic", "ruamel.yaml", "uvloop", "httptools", "typer", "ansible-core")
Reach = Callable[[str], list[str]]


class NothingError(Exception):
    """A source has nothing, or cannot be had; the message says why."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a source gave."""

    content: Any
    """A document; text; or a list of lines."""
    partial: str = ""
    """Why it is not whole; empty: it is."""


@dataclass(frozen=True, slots=True)
class Source:
    """Something to collect."""

    name: str
    file: str
    """Path in the archive; names in it are replaced as in texts."""
    collect: Callable[[], Found] | None
    """None: it was not asked for."""
    kind: str = "document"
    """`document`, `text`, `rows` (JSON Lines), `own` (a router's log), `engine` (an engine's log)."""
    skipped: str = ""
    """Why it is skipped, and how to ask for it."""


@dataclass(slots=True)
class Plan:
    """What a bundle is made from."""

    since_s: float
    client: AdminClient | None = None
    """The router; None: none is known."""
    no_client: str = ""
    """Why none is."""
    expanded: Expanded | None = None
    fleet_data: Any = None
    """The fleet file, as it was read."""
    fleet_problem: str = ""
    """Why there is none."""
    journal: Path | None = None
    """The journal's folder on this machine, for a router that does not answer."""
    log_files: Mapping[str, Path] = field(default_factory=dict)
    """Logs that are files of this machine, by name."""
    launches: Mapping[str, Path] = field(default_factory=dict)
    """Launch records that are files of this machine."""
    reach: Reach | None = None
    """How hosts are reached."""
    over_ssh: bool = False
    """Whether hosts are asked over SSH."""


def sources(plan: Plan) -> list[Source]:
    """Everything that there may be."""
    found = [
        Source("versions", "versions.json", lambda: Found(versions())),
        Source("fleet", "fleet.json", lambda: _fleet(plan)),
        *_of_router(plan),
        Source("journal", "router/journal.jsonl", lambda: _journal(plan), "rows"),
        *(_launch(name, path) for name, path in sorted(plan.launches.items())),
    ]
    if plan.log_files:
        found += [_file_log(name, path) for name, path in sorted(plan.log_files.items())]
    elif plan.expanded is not None:
        found += [_unit_log(plan, name, plan.expanded) for name in names(plan.expanded)]
    found.append(Source("facts of this machine", "hosts/here.json", lambda: Found(_facts([]))))
    if plan.expanded is not None:
        found += [_host(plan, host.name) for host in plan.expanded.fleet.hosts if host.ssh is not None]
    return found


def versions() -> dict[str, Any]:
    """What made the bundle."""
    known: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            known[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            known[name] = None
    system = platform.uname()
    return {
        "narwhal": narwhal.__version__,
        "python": platform.python_version(),
        "system": system.system,
        "kernel": system.release,
        "machine": system.machine,
        "packages": known,
    }


def _fleet(plan: Plan) -> Found:
    if plan.fleet_data is None:
        raise NothingError(plan.fleet_problem or "no fleet file is named")
    return Found(plan.fleet_data, plan.fleet_problem)


def _of_router(plan: Plan) -> list[Source]:
    """What the admin listener tells."""

    def ask(question: Callable[[AdminClient], Any]) -> Callable[[], Found]:
        def answer() -> Found:
            if plan.client is None:
                raise NothingError(plan.no_client or "no router is named")
            return Found(question(plan.client))

        return answer

    return [
        Source("state", "router/state.json", ask(lambda k: k.state())),
        Source("health", "router/ready.json", ask(lambda k: k.ready())),
        Source("moves", "router/moves.json", ask(lambda k: k.moves())),
        Source("decisions", "router/decisions.json", ask(lambda k: {"decisions": k.decisions()})),
        Source("changes", "router/changes.json", ask(lambda k: k.changes())),
        Source("links", "router/links.json", ask(lambda k: k.links())),
        Source("metrics", "router/metrics.txt", ask(lambda k: k.metrics()), "text"),
    ]


def _journal(plan: Plan) -> Found:
    """Rows of the window: from the files where they are here, else from the router."""
    if plan.journal is not None:
        files = journal_files(plan.journal)
        if not files:
            raise NothingError(f"there is no journal in {plan.journal}")
        return _window(b"".join(file.read_bytes() for file in files[-3:])[-LIMIT_BYTES:].splitlines(), plan.since_s)
    if plan.client is None:
        raise NothingError(plan.no_client or "no router is named, and its journal is not on this machine")
    rows: list[Any] = []
    place, more, size, until_t = FIRST_PLACE, True, 0, time.monotonic() + LIMIT_S - 2.0
    while more and time.monotonic() < until_t:
        answer = plan.client.journal(place)
        rows += answer["rows"]
        place, more = answer["place"], answer["more"]
        size += len(answer["rows"])
    lines = [json.dumps(row).encode() for row in rows]
    found = _window(lines, plan.since_s)
    return Found(found.content, "the router did not send all of it in time" if more else found.partial)


def _window(lines: Sequence[bytes], since_s: float) -> Found:
    """The rows of the last so many seconds, the start of the router among them whenever it was."""
    rows, torn = [], 0
    for line in lines:
        try:
            rows.append(json.loads(line))
        except ValueError:
            torn += 1
    end_t = max((_at(row) for row in rows), default=0.0)
    kept = [row for row in rows if row.get("type") == "start" or _at(row) >= end_t - since_s]
    size = 0
    for place in range(len(kept) - 1, -1, -1):
        size += len(json.dumps(kept[place]))
        if size > LIMIT_BYTES:
            return Found(kept[place + 1 :], f"only its last {LIMIT_BYTES} bytes")
    return Found(kept, f"{torn} lines cannot be read" if torn > 1 else "")


def _at(row: Mapping[str, Any]) -> float:
    if row.get("type") == "decision":
        return float(row["decision"]["t"])
    return float(row.get("t", row.get("arrived_t", 0.0)))


def _launch(name: str, path: Path) -> Source:
    return Source(f"launch {name}", f"launch/{name}.json", lambda: Found(json.loads(path.read_text())))


def _file_log(name: str, path: Path) -> Source:
    kind = "own" if name in ("router", "standby") else "engine"

    def read() -> Found:
        with path.open("rb") as file:
            file.seek(0, 2)
            size = file.tell()
            file.seek(max(size - LIMIT_BYTES, 0))
            lines = file.read(LIMIT_BYTES).decode(errors="replace").splitlines()
        cut = size > LIMIT_BYTES
        return Found(lines[cut:], f"only its last {LIMIT_BYTES} bytes" if cut else "")

    return Source(f"log {name}", f"logs/{name}.log", read, kind)


def _unit_log(plan: Plan, name: str, expanded: Expanded) -> Source:
    place, kind = place_of(name, expanded), "own" if name in ("router", "standby") else "engine"
    remote = next(host.ssh for host in expanded.fleet.hosts if host.name == place.host) is not None
    file = f"logs/{name}.log"
    if remote and not plan.over_ssh:
        return Source(f"log {name}", file, None, kind, "its host is asked with --hosts")

    def read() -> Found:
        script = f"{{ {unit_script(place.unit, Wish(since_s=plan.since_s))}; }} | tail -c {LIMIT_BYTES}"
        said = _run(command(_way(plan, place.host), script))
        return Found(said.splitlines())

    return Source(f"log {name}", file, read, kind)


def _host(plan: Plan, name: str) -> Source:
    if not plan.over_ssh:
        return Source(f"facts of {name}", f"hosts/{name}.json", None, skipped="hosts are asked with --hosts")
    return Source(f"facts of {name}", f"hosts/{name}.json", lambda: Found(_facts(_way(plan, name))))


def _way(plan: Plan, host: str) -> list[str]:
    return plan.reach(host) if plan.reach is not None else []


def _facts(way: list[str]) -> Any:
    """What a host is, by the program that gate A asks it with."""
    program = data_path("playbooks", "roles", "discover", "files", "facts.py").read_text()
    argv = (
        [*way, "python3 - --python python3 --path /"]
        if way
        else [sys.executable, "-", "--python", "python3", "--path", "/"]
    )
    return json.loads(_run(argv, program))


def _run(argv: Sequence[str], said: str = "") -> str:
    """What a command answers. Raises `NothingError` with its last words."""
    try:
        done = subprocess.run(
            argv, input=said, capture_output=True, text=True, errors="replace", timeout=SSH_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise NothingError(f"no answer within {SSH_S:.0f} s") from None
    except OSError as error:
        raise NothingError(f"{shlex.quote(argv[0])}: {error.strerror}") from None
    if done.returncode:
        words = done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"]
        raise NothingError(words[-1])
    return done.stdout
