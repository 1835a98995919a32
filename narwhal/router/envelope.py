"""What an order on the admin listener is answered with: one document for all of them, done or not."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from narwhal.control.events import Role
from narwhal.control.records import Decision
from narwhal.control.state import Engine
from narwhal.router.http import Connection
from narwhal.router.reload import Reload
from narwhal.router.replies import error_of
from narwhal.router.state import standing

if TYPE_CHECKING:
    from narwhal.router.shell import Shell


class EngineNow(msgspec.Struct, frozen=True):
    """An engine that the order named, as it stands after it."""

    id: str
    role: Role
    pin: Role | None
    state: str
    """As in `RouterState`."""


class HoldNow(msgspec.Struct, frozen=True):
    """Whether role moves are held, after the order."""

    on: bool
    reason: str


class OrderError(msgspec.Struct, frozen=True):
    """An error as OpenAI's clients read it."""

    message: str
    type: str
    param: str | None
    code: str | int


class OrderAnswer(msgspec.Struct, frozen=True):
    """What became of an order."""

    order: str
    """The last word of its route: `drain`, `move`, …"""
    done: bool
    """Whether it was carried out, or was in force already; otherwise nothing was changed."""
    reason: str
    """In words: what was done, or why not."""
    error: OrderError | None = None
    """Why not; null: it was done."""
    decision: Decision | None = None
    """The decision that control took; null: it was not asked."""
    engines: list[EngineNow] = []
    hold: HoldNow | None = None
    """For `hold` and `unhold`."""
    reload: Reload | None = None
    """For `reload`."""
    leader: str | None = None
    """For `handover`: the host of the router that leads now."""
    apiVersion: Literal["narwhal/v1"] = "narwhal/v1"  # noqa: N815
    kind: Literal["OrderAnswer"] = "OrderAnswer"


REPLAYED = b"idempotency-replayed: true\r\n"


class Reply:
    """The answer to one order, to whoever asks for it: a call that is repeated gets what the first one got."""

    def __init__(self, connection: Connection, order: str) -> None:
        self.order = order
        self.undecided: Callable[[], None] = lambda: None
        """Called when it is refused before anything was decided: the same call may be tried again."""
        self._waiting: list[tuple[Connection, bytes]] = [(connection, b"")]
        self._said: tuple[int, bytes] | None = None

    def repeat(self, connection: Connection) -> None:
        """Answer a repeated call as the first one, now or with it."""
        if self._said is None:
            self._waiting.append((connection, REPLAYED))
        else:
            connection.respond(*self._said, headers=REPLAYED)

    def done(self, reason: str, **parts: Any) -> None:
        """It was carried out."""
        self._say(200, OrderAnswer(self.order, True, reason, **parts))

    def held(self, reason: str, **parts: Any) -> None:
        """It was understood, and nothing was changed."""
        self._say(409, self._refusal(409, reason, None, parts))

    def refuse(self, status: int, message: str, code: str | None = None, headers: bytes = b"") -> None:
        """It was not even looked into."""
        self.undecided()
        self._say(status, self._refusal(status, message, code, {}), headers)

    def _refusal(self, status: int, message: str, code: str | None, parts: dict[str, Any]) -> OrderAnswer:
        error = OrderError(**error_of(status, message, code=code))
        return OrderAnswer(self.order, False, message, error, **parts)

    def _say(self, status: int, answer: OrderAnswer, headers: bytes = b"") -> None:
        body = msgspec.json.encode(answer)
        self._said = status, body
        waiting, self._waiting = self._waiting, []
        for connection, more in waiting:
            connection.respond(status, body, headers=headers + more)


def engine_now(engine: Engine) -> EngineNow:
    """How an engine stands."""
    return EngineNow(engine.id, engine.role, engine.pin, standing(engine))


def hold_now(shell: "Shell") -> HoldNow:
    """Whether moves are held."""
    pool = shell.control.pool
    return HoldNow(pool.hold, pool.hold_reason)
