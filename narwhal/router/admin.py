"""The admin listener: metrics, state, and the verbs that change something."""

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from narwhal.control import commands as c
from narwhal.control import events as e
from narwhal.control.placement import degraded
from narwhal.control.records import Decision
from narwhal.fleet.model import Scope
from narwhal.router.callers import Refusal, Rule, cross_site, lacking
from narwhal.router.http import Connection
from narwhal.router.incoming import Incoming
from narwhal.router.matrix import changes, links
from narwhal.router.metrics import Collector
from narwhal.router.reload import Reload
from narwhal.router.replies import error_body, retry_after
from narwhal.router.tokens import Caller

if TYPE_CHECKING:
    from narwhal.router.shell import Shell

_SCOPES: dict[str, Scope] = {"/narwhal/follow": "replicate"}
"""What a route asks for where it is neither of the usual."""
_REASON_CHARACTERS = 200
log = logging.getLogger("narwhal.router")


class _Hold(msgspec.Struct, forbid_unknown_fields=True):
    reason: str = ""


def _plain(text: str) -> str:
    """A text that is shown in other operators' terminals: printable, and no longer than a line or two."""
    return "".join(c if c.isprintable() else " " for c in text[:_REASON_CHARACTERS])


class _Nothing(msgspec.Struct, forbid_unknown_fields=True):
    pass


class _Move(msgspec.Struct, forbid_unknown_fields=True):
    engine: str
    role: e.Role


class _Swap(msgspec.Struct, forbid_unknown_fields=True):
    a: str
    b: str


class _Reload(msgspec.Struct, forbid_unknown_fields=True):
    check: bool = False


class Reloading(Protocol):
    """Reads the fleet file again, and says later what came of it."""

    def __call__(self, *, by: str, check: bool, done: Callable[[Reload], None]) -> None:
        """Begin; `done` is told the outcome."""


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
        self.reload: Reloading | None = None
        """What `/narwhal/reload` does."""
        self.hand_over: Callable[[Connection], None] = _alone
        """What `/narwhal/handover` does."""
        self.follow: Callable[[Connection, Incoming], None] = lambda k, r: _alone(k)
        """What `/narwhal/follow` does."""
        self.frozen: Callable[[], str] = lambda: ""
        """Why nothing may be changed now; empty: it may."""
        self.lease: Callable[[], dict[str, Any] | None] = lambda: None
        """What the router's state says of its lease; None: it needs none."""
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
            "/narwhal/state": lambda k, r: k.respond(
                200, msgspec.json.encode({**self._state(), "lease": self.lease()})
            ),
            "/narwhal/moves": self._moves,
            "/narwhal/decisions": self._decisions,
            "/narwhal/follow": lambda k, r: self.follow(k, r),
            "/narwhal/changes": lambda k, r: k.respond(200, msgspec.json.encode(changes(shell))),
            "/narwhal/links": lambda k, r: k.respond(200, msgspec.json.encode(links(shell))),
        }
        self._posts: dict[str, tuple[Any, Callable[[Any], e.AnyEvent] | None]] = {
            "/narwhal/hold": (_Hold, lambda b: e.HoldSet(shell.now(), True, _plain(b.reason))),
            "/narwhal/unhold": (_Nothing, lambda b: e.HoldSet(shell.now(), False)),
            "/narwhal/move": (_Move, lambda b: e.MoveRequested(shell.now(), b.engine, b.role)),
            "/narwhal/swap": (_Swap, lambda b: e.SwapRequested(shell.now(), b.a, b.b)),
            "/narwhal/reload": (_Reload, None),
            "/narwhal/handover": (_Nothing, None),
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
        if not reads and request.path not in self._posts:
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
            self._post(connection, request, caller)

    def _ready(self, connection: Connection, request: Incoming) -> None:
        refusing = self.shell.refusing
        reason = self.shell.unready() if refusing is None else refusing.code
        answer: dict[str, Any] = {"ready": not reason, "reason": reason}
        if reduced := degraded(self.shell.control.pool, self.shell.settings):
            answer["degraded"] = reduced
        connection.respond(503 if reason else 200, msgspec.json.encode(answer))

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

    def _post(self, connection: Connection, request: Incoming, caller: Caller) -> None:
        kind, make = self._posts[request.path]
        try:
            body = msgspec.json.decode(request.body or b"{}", type=kind)
        except (msgspec.DecodeError, RecursionError) as error:
            connection.respond(400, error_body(400, f"the body is not what {request.path} takes: {error}"))
            return
        if isinstance(body, _Reload):  # a router that does not lead reads its file too
            self._start_reload(connection, body, caller)
            return
        if frozen := self.frozen():
            connection.respond(503, error_body(503, frozen, code="frozen"), headers=retry_after(1.0))
            return
        if make is None:
            self.hand_over(connection)
            return
        unknown = [name for name in _engines_named(body) if name not in self.shell.control.pool.engines]
        if unknown:
            names = ", ".join(sorted(self.shell.control.pool.engines))
            connection.respond(404, error_body(404, f"no engine {unknown[0]}; there are {names}"))
            return
        commands = self.shell.feed(make(body))
        decision = next((k.decision for k in commands if isinstance(k, c.Decided)), None)
        connection.respond(_status(decision), msgspec.json.encode(decision if decision else self._hold_state()))

    def _start_reload(self, connection: Connection, body: _Reload, caller: Caller) -> None:
        assert self.reload is not None

        def done(outcome: Reload) -> None:
            connection.respond(409 if outcome.errors else 200, msgspec.json.encode(outcome))

        self.reload(by=caller.name, check=body.check, done=done)

    def _hold_state(self) -> dict[str, Any]:
        pool = self.shell.control.pool
        return {"hold": {"on": pool.hold, "reason": pool.hold_reason}}


def _alone(connection: Connection) -> None:
    connection.respond(404, error_body(404, "this router is alone: the fleet file names no standby (routers.standby)"))


def _engines_named(body: Any) -> list[str]:
    return [getattr(body, name) for name in ("engine", "a", "b") if hasattr(body, name)]


def _status(decision: Decision | None) -> int:
    """409 when a guard held what was asked for: nothing changed."""
    return 409 if decision is not None and decision.outcome == "held" else 200
