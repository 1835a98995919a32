"""A router process of a drill, and what can be asked of it: by its Unix socket, so whatever its network does."""

import json
import sys
from collections.abc import Callable, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any

from narwhal.diagnose import AdminClient, UnreachableError
from narwhal.drills.drill import expect
from narwhal.drills.processes import Process
from narwhal.drills.web import ask_socket
from narwhal.fleet import Expanded
from narwhal.fleet.places import admin_socket


class Router:
    """One router of a fleet. `start`: what its command begins with."""

    def __init__(
        self,
        folder: Path,
        fleet: Path,
        expanded: Expanded,
        *,
        standby: bool = False,
        on: Sequence[str] = (),
        socket: int | None = None,
    ) -> None:
        own = expanded.of_router(standby=standby)
        self.name = "standby" if standby else "primary"
        self.host = own.routers[0].bind
        self.port = own.routers[0].port
        shared = own.on_one_host or len(own.routers) == 1
        self.state_dir = folder / ("state" if shared else f"state-{self.name}")
        given = expanded.fleet.observability.journal.path
        self._journal = Path(given) if given else self.state_dir / "journal"
        if standby and own.on_one_host:
            self._journal = self._journal.with_name("journal-standby")
        argv = [*on, sys.executable, "-m", "narwhal.cli.serve", "--fleet", str(fleet)]
        argv += ["--state-dir", str(self.state_dir), *(["--standby"] if standby else [])]
        self.process = Process(self.name, argv, folder, socket=socket)
        self._socket = admin_socket(own, self.state_dir)
        self.admin = AdminClient(f"unix:{self._socket}", timeout_s=30.0)

    @property
    def address(self) -> tuple[str, int]:
        """Where clients reach it."""
        return self.host, self.port

    @property
    def journal_dir(self) -> Path:
        """Where its journal is, on whatever disk the process finds there."""
        return Path(f"/proc/{self.process.pid}/root{self._journal}") if self.process.runs else self._journal

    def ask(self, method: str, route: str, body: object = None) -> tuple[int, Any]:
        """Status and document of a request to its admin socket. Raises `OSError`."""
        return ask_socket(self._socket, method, route, body)

    def order(self, verb: str, **body: object) -> tuple[int, Any]:
        """Give it an order."""
        return self.ask("POST", f"/narwhal/{verb}", body)

    def state(self) -> Any:
        """Its `RouterState`."""
        return self.admin.state()

    def engine(self, name: str) -> Any:
        """What it says of an engine."""
        return next(engine for engine in self.state()["engines"] if engine["id"] == name)

    def roles(self) -> dict[str, str]:
        """The role of each engine."""
        return {engine["id"]: engine["role"] for engine in self.state()["engines"]}

    def links(self) -> dict[tuple[str, str], Any]:
        """Its directed pairs of engines."""
        return {(link["producer"], link["consumer"]): link for link in self.admin.links()["links"]}

    def metrics(self) -> str:
        """Its metrics' page."""
        return str(self.ask("GET", "/metrics")[1])

    def ready(self) -> bool:
        """Whether it serves."""
        return self._says(lambda: self.ask("GET", "/ready")[0] == 200)

    def all_live(self) -> bool:
        """Whether all engines may have work."""
        return self._says(lambda: all(engine["state"] == "live" for engine in self.state()["engines"]))

    def follows(self) -> bool:
        """Whether it hears the router that leads."""
        return self._says(lambda: self.state()["lease"]["lag_s"] is not None)

    def idle(self) -> bool:
        """Whether no engine that may have work is charged with anything; of a dead one the last look stands."""
        live = [engine for engine in self.state()["engines"] if engine["state"] == "live"]
        return all(engine["residents"] == engine["prefills"] == 0 for engine in live)

    def rows(self, kind: str) -> list[Any]:
        """The rows of a kind in its journal, oldest first."""
        files = sorted(self.journal_dir.glob("journal.jsonl.*"), key=lambda p: -int(p.suffix[1:]))
        lines = [line for path in (*files, self.journal_dir / "journal.jsonl") for line in _lines(path)]
        return [row for row in map(json.loads, lines) if row["type"] == kind]

    def changes(self, change: str) -> list[Any]:
        """The rows of engines and pairs with this change."""
        return [row for kind in ("engine", "pair") for row in self.rows(kind) if row["change"] == change]

    def _says(self, asked: Callable[[], bool]) -> bool:
        """The answer to a question; False while nobody answers. Raises `DrillError` when the process has ended."""
        try:
            return asked()
        except (OSError, HTTPException, UnreachableError):
            expect(self.process.runs, f"the {self.name} router ended: {self.process.tail()}")
            return False


def _lines(path: Path) -> list[str]:
    """The whole lines of a file that somebody may be writing."""
    try:
        return path.read_text().splitlines(keepends=False)
    except FileNotFoundError:
        return []
