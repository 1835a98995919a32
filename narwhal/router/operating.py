"""What an operator may order: each order's body, and how it is carried out. A call that fails changes nothing."""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

import msgspec

from narwhal.control import commands as c
from narwhal.control import events as e
from narwhal.control.records import Decision
from narwhal.router.envelope import Reply, engine_now, hold_now
from narwhal.router.http import Connection
from narwhal.router.incoming import Incoming
from narwhal.router.reload import Reload
from narwhal.router.repeats import Repeats, ReusedError
from narwhal.router.replies import retry_after
from narwhal.router.tokens import Caller

if TYPE_CHECKING:
    from narwhal.router.shell import Shell

ALONE = "this router is alone: the fleet file names no standby (routers.standby)"
_REASON_CHARACTERS = 200
_KEY = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_Names = Annotated[list[str], msgspec.Meta(min_length=1)]


class _Body(msgspec.Struct, forbid_unknown_fields=True):
    pass


class _Hold(_Body):
    reason: str = ""


class _Unhold(_Body):
    pass


class _Move(_Body):
    engine: str
    role: e.Role


class _Swap(_Body):
    a: str
    b: str


class _Drain(_Body):
    engines: _Names
    deadline_s: Annotated[float, msgspec.Meta(ge=0)] | None = None
    stay: bool = False
    cancel: bool = False
    move: bool = False


class _Readmit(_Body):
    engines: _Names


class _Pin(_Body):
    engine: str
    role: Literal["prefill", "decode", "none"]


class _Reload(_Body):
    check: bool = False


class _Handover(_Body):
    pass


class Reloading(Protocol):
    """Reads the fleet file again, and says later what came of it."""

    def __call__(self, *, by: str, check: bool, done: Callable[[Reload], None]) -> None:
        """Begin; `done` is told the outcome."""


BODIES: dict[str, type[_Body]] = {
    f"/narwhal/{kind.__name__[1:].lower()}": kind
    for kind in (_Hold, _Unhold, _Move, _Swap, _Drain, _Readmit, _Pin, _Reload, _Handover)
}
"""Routes of orders, and what each takes."""


def _plain(text: str) -> str:
    """A text that is shown in other operators' terminals: printable, and no longer than a line or two."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:_REASON_CHARACTERS])


class Operator:
    """Carries orders out."""

    def __init__(self, shell: "Shell") -> None:
        self.shell = shell
        self.reload: Reloading | None = None
        """What `/narwhal/reload` does."""
        self.hand_over: Callable[[Reply], None] = lambda reply: reply.refuse(404, ALONE)
        """What `/narwhal/handover` does."""
        self.frozen: Callable[[], str] = lambda: ""
        """Why nothing may be changed now; empty: it may."""
        self._repeats = Repeats(shell.now)

    def order(self, connection: Connection, request: Incoming, caller: Caller) -> None:
        """Take one order, or answer one that was repeated."""
        reply = Reply(connection, request.path.removeprefix("/narwhal/"))
        try:
            body = msgspec.json.decode(request.body or b"{}", type=BODIES[request.path])
        except (msgspec.DecodeError, RecursionError) as error:
            reply.refuse(400, f"the body is not what {request.path} takes: {error}")
            return
        key = request.headers.get(b"idempotency-key")
        if key is not None and not self._is_new(key.decode("latin1"), body, reply, connection, caller):
            return
        if isinstance(body, _Reload):  # a router that does not lead reads its file too
            self._reload(body, reply, caller)
        elif frozen := self.frozen():
            reply.refuse(503, frozen, "frozen", retry_after(1.0))
        elif isinstance(body, _Handover):
            self.hand_over(reply)
        else:
            self._ask_control(body, reply)

    def _is_new(self, key: str, body: _Body, reply: Reply, connection: Connection, caller: Caller) -> bool:
        if not _KEY.fullmatch(key):
            reply.refuse(400, "Idempotency-Key must be 1 to 128 letters, digits or . _ : -", "idempotency_key")
            return False
        order = b"%s %s" % (reply.order.encode(), msgspec.json.encode(body))
        try:
            return self._repeats.is_new((caller.name, key), order, reply, connection)
        except ReusedError:
            text = "this Idempotency-Key was used for another order; a new order takes a new key"
            reply.refuse(422, text, "idempotency_key_reused")
            return False

    def _ask_control(self, body: _Body, reply: Reply) -> None:
        shell = self.shell
        named, unknown = self._named(body)
        if unknown:
            names = ", ".join(sorted(shell.control.pool.engines))
            reply.refuse(404, f"no engine {unknown}; there are {names}")
            return
        commands = shell.feed(self._event(body, tuple(named)))
        [decision] = [command.decision for command in commands if isinstance(command, c.Decided)][:1]
        self._say(reply, decision, named, hold=isinstance(body, _Hold | _Unhold))

    def _say(self, reply: Reply, decision: Decision, named: list[str], *, hold: bool) -> None:
        engines = self.shell.control.pool.engines
        parts: dict[str, Any] = {"decision": decision, "engines": [engine_now(engines[name]) for name in named]}
        if hold:
            parts["hold"] = hold_now(self.shell)
        answer = reply.held if decision.outcome in ("held", "advised") else reply.done
        answer(decision.reason, **parts)

    def _named(self, body: _Body) -> tuple[list[str], str]:
        """The engines that an order names, all of a host's where it names one; and a name that is neither."""
        known = self.shell.control.pool.engines
        if not isinstance(body, _Drain | _Readmit):
            named = [str(getattr(body, name)) for name in ("engine", "a", "b") if hasattr(body, name)]
            return named, next((name for name in named if name not in known), "")
        found: dict[str, None] = {}
        for name in body.engines:
            own = [name] if name in known else sorted(engine for engine in known if engine.startswith(f"{name}/"))
            if not own:
                return [], f"or host {name}"
            found |= dict.fromkeys(own)
        return list(found), ""

    def _event(self, body: _Body, engines: tuple[str, ...]) -> e.AnyEvent:
        t = self.shell.now()
        match body:
            case _Hold():
                return e.HoldSet(t, True, _plain(body.reason))
            case _Move():
                return e.MoveRequested(t, body.engine, body.role)
            case _Swap():
                return e.SwapRequested(t, body.a, body.b)
            case _Drain():
                until_t = -1.0 if body.deadline_s is None else t + body.deadline_s
                return e.DrainSet(t, engines, not body.cancel, until_t, body.stay, body.move)
            case _Readmit():
                return e.ReadmitRequested(t, engines)
            case _Pin():
                return e.PinSet(t, body.engine, None if body.role == "none" else body.role)
        return e.HoldSet(t, False)

    def _reload(self, body: _Reload, reply: Reply, caller: Caller) -> None:
        assert self.reload is not None

        def done(outcome: Reload) -> None:
            if outcome.errors:
                reply.held(outcome.errors[0].message, reload=outcome)
            else:
                many = len(outcome.applied)
                word = "would be applied" if body.check else "applied"
                reply.done(f"{many} change{'' if many == 1 else 's'} {word}", reload=outcome)

        self.reload(by=caller.name, check=body.check, done=done)
