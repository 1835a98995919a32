"""The admin listener: metrics, state, and the verbs that change something."""

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from narwhal.control.placement import degraded
from narwhal.control.records import Decision
from narwhal.fleet.model import Scope
from narwhal.router.callers import Refusal, Rule, cross_site, lacking
from narwhal.router.exporter import Collector
from narwhal.router.http import Connection
from narwhal.router.incoming import Incoming
from narwhal.router.live import PATHS, Live, serve_file
from narwhal.router.matrix import changes, links
from narwhal.router.operating import ALONE, BODIES, Operator
from narwhal.router.reading import answer_rows
from narwhal.router.replies import error_body
from narwhal.router.targets import Target
from narwhal.router.tokens import Caller

if TYPE_CHECKING:
    from narwhal.router.shell import Shell

_SCOPES: dict[str, Scope] = {"/narwhal/follow": "replicate"}
"""What a route asks for where it is neither of the usual."""
log = logging.getLogger("narwhal.router")


class Door:
    """One listener of the admin surface: `rule` says who asks there, and whether they may."""

    max_body = 65536
    max_head = 65536
    max_buffered = 16 * max_body

    def __init__(self, admin: "Admin", rule: Rule) -> None:
        self.connections = admin.connections
        self.buffered = 0
        self._admin = admin
        self._rule = rule

    def judge(self, connection: Connection, method: bytes, path: str, headers: dict[bytes, bytes], length: int) -> int:
        """Bodies are small here: what is wrong with a request is said when it is whole."""
        return 0

    def refused(self, code: str) -> None:
        """Nobody asks how often."""

    def handle(self, connection: Connection, request: Incoming) -> None:
        """Answer one request, or refuse it."""
        caller = cross_site(request) or self._rule(connection, request)
        if isinstance(caller, Refusal):
            self._admin.refused += 1
            caller.answer(connection)
        else:
            self._admin.answer(connection, request, caller)


class Admin:
    """What operators may see and do, whichever listener they come by."""

    def __init__(self, shell: "Shell", state: Callable[[], dict[str, Any]]) -> None:
        self.shell = shell
        self.connections: set[Connection] = set()
        self.operator = Operator(shell)
        self.live = Live(shell, self._whole_state)
        self.follow: Callable[[Connection, Incoming], None] = lambda k, r: _alone(k)
        """What `/narwhal/follow` does."""
        self.lease: Callable[[], dict[str, Any] | None] = lambda: None
        """What the router's state says of its lease; None: it needs none."""
        self.targets: Callable[[], list[Target]] = list
        """What Prometheus is to scrape."""
        self.refused = 0
        """Requests of callers that may not ask what they asked."""
        self._state = state
        self._registry = CollectorRegistry()
        self._registry.register(Collector(shell))
        self._registry.register(self)
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self._registry)
        self._gets: dict[str, Callable[[Connection, Incoming], None]] = {
            "/health": lambda k, r: k.respond(200, b"{}"),
            "/ready": self._ready,
            "/metrics": self._metrics,
            "/narwhal/state": lambda k, r: k.respond(200, msgspec.json.encode(self._whole_state())),
            "/narwhal/events": self.live.serve,
            "/narwhal/moves": self._moves,
            "/narwhal/decisions": self._decisions,
            "/narwhal/follow": lambda k, r: self.follow(k, r),
            "/narwhal/changes": lambda k, r: k.respond(200, msgspec.json.encode(changes(shell))),
            "/narwhal/links": lambda k, r: k.respond(200, msgspec.json.encode(links(shell))),
            "/narwhal/targets": lambda k, r: k.respond(200, msgspec.json.encode(self.targets())),
            "/narwhal/journal": lambda k, r: answer_rows(k, r, shell.journal.rows, shell.now),
            **dict.fromkeys(PATHS, serve_file),
        }

    def collect(self) -> Iterable[Any]:
        """Its own metric; see the catalogue."""
        from prometheus_client.core import CounterMetricFamily

        text = "Requests that were not allowed on the admin listeners."
        yield CounterMetricFamily("narwhal_admin_refused", text, value=self.refused)

    def register(self, collector: Any) -> None:
        """Show further metrics."""
        self._registry.register(collector)

    def answer(self, connection: Connection, request: Incoming, caller: Caller) -> None:
        """Answer one request of a caller, as far as it may ask."""
        reads = request.path in self._gets
        if not reads and request.path not in BODIES:
            connection.respond(404, error_body(404, f"no route {request.path}"))
        elif request.method not in (("GET", "HEAD") if reads else ("POST",)):
            headers = b"allow: GET\r\n" if reads else b"allow: POST\r\n"
            connection.respond(405, error_body(405, "Method Not Allowed"), headers=headers)
        elif refusal := lacking(caller, _SCOPES.get(request.path, "read" if reads else "operate")):
            self.refused += 1
            refusal.answer(connection)
        elif reads:
            self._gets[request.path](connection, request)
        else:
            if request.path != "/narwhal/reload":  # says itself what it did; a mere check does nothing
                log.info("%s asks for %s", caller.name, request.path)
            self.operator.order(connection, request, caller)

    def _whole_state(self) -> dict[str, Any]:
        return {**self._state(), "lease": self.lease()}

    def _ready(self, connection: Connection, request: Incoming) -> None:
        status, answer = self.shell.readiness()
        if self.shell.refusing is None:
            answer["reason"] = self.shell.unready()
        if reduced := degraded(self.shell.control.pool, self.shell.settings):
            answer["degraded"] = reduced
        connection.respond(status, msgspec.json.encode(answer))

    def _metrics(self, connection: Connection, request: Incoming) -> None:
        connection.respond(200, generate_latest(self._registry), kind=CONTENT_TYPE_LATEST.encode())

    def _moves(self, connection: Connection, request: Incoming) -> None:
        kept = [d for d in self.shell.decisions if d.outcome in ("moved", "held", "advised")]
        connection.respond(200, self._document("Moves", "moves", kept))

    def _decisions(self, connection: Connection, request: Incoming) -> None:
        kept = list(self.shell.decisions)
        last = self.shell.control.roles.last
        if last is not None and (not kept or kept[-1].id != last.id):
            kept.append(last)
        if "held=1" in request.query.split("&"):
            kept = [decision for decision in kept if decision.outcome == "held"]
        connection.respond(200, self._document("Decisions", "decisions", kept))

    def _document(self, kind: str, name: str, decisions: list[Decision]) -> bytes:
        """Decisions, and the time on the clock that they are dated by."""
        head = {"apiVersion": "narwhal/v1", "kind": kind, "now_t": self.shell.now()}
        return msgspec.json.encode({**head, name: decisions})


def _alone(connection: Connection) -> None:
    connection.respond(404, error_body(404, ALONE))
