"""A small driver for tests: feeds events to a real `Control` and keeps what it commanded."""

from typing import Any, TypeVar

from narwhal.control import Control, Curves, Settings
from narwhal.control.commands import AnyCommand
from narwhal.control.events import (
    AnyEvent,
    EngineJoined,
    EngineUp,
    PrefillFinished,
    RequestArrived,
    Role,
)
from narwhal.control.queue import FairQueue
from narwhal.fleet.model import Controller, Recovery, Serving, Slo

C = TypeVar("C")

CURVES = Curves(
    t_min_s=0.0,
    a_s=0.0,
    b_s=0.001,
    c_s=0.0,
    d0_s=0.01,
    d1_s=0.001,
    d2_s=0.0,
    transfer_t0_s=0.001,
    transfer_bytes_per_s=1e9,
    kv_bytes_per_token=1000,
    kv_capacity_tokens=10_000,
    max_num_seqs=8,
    chunk_tokens=1000,
)
"""1,000 prompt tokens a second; a decode interval of 10 ms and 1 ms for each stream."""


def settings(**parts: Any) -> Settings:
    """Settings with roles that do not move by themselves; `serving=`, `controller=`, … replace sections."""
    return Settings(
        slo=parts.get("slo", Slo(ttft_s=2.0, tpot_s=0.05)),
        serving=Serving.model_validate(parts.get("serving", {"admission": "open"})),
        controller=Controller.model_validate(parts.get("controller", {"enabled": False})),
        recovery=Recovery.model_validate(parts.get("recovery", {})),
        kv_lease_s=parts.get("kv_lease_s", 30.0),
        tenants=parts.get("tenants", ()),
    )


class Driver:
    """A `Control` with engines that are up, and the commands it gave."""

    def __init__(
        self, roles: str, *, fingerprints: dict[str, str] | None = None, measured: bool = True, **parts: Any
    ) -> None:
        """`roles` such as `ppd`: engine e0 and e1 prefill, e2 decode. `measured`: whether they have profiles."""
        self.settings = settings(**parts)
        self.control = Control(self.settings)
        self.pool = self.control.pool
        self.t = 0.0
        self.events: list[AnyEvent] = []
        self.commands: list[AnyCommand] = []
        for number, letter in enumerate(roles):
            role: Role = "prefill" if letter == "p" else "decode"
            name = f"e{number}"
            self.feed(EngineJoined(self.t, name, role, CURVES, measured, None, (fingerprints or {}).get(name, "")))
            self.feed(EngineUp(self.t, name, "life-1"))

    def feed(self, event: AnyEvent) -> list[AnyCommand]:
        """Handle one event; its commands are returned and kept."""
        self.t = max(self.t, event.t)
        self.events.append(event)
        commands = self.control.handle(event)
        self.commands += commands
        return commands

    def arrive(self, number: int, prompt_tokens: int = 100, t: float | None = None, **more: Any) -> list[AnyCommand]:
        """A request arrives."""
        return self.feed(RequestArrived(self.t if t is None else t, number, prompt_tokens, 50, **more))

    def prefilled(self, number: int, t: float | None = None) -> list[AnyCommand]:
        """Leg 1 of a request answers."""
        return self.feed(PrefillFinished(self.t if t is None else t, number, 0))

    def engine(self, name: str) -> Any:
        """The state of an engine."""
        return self.pool.engines[name]


def only(commands: list[AnyCommand], kind: type[C]) -> C:
    """The one command of a kind; fails when there is none or more."""
    found = [command for command in commands if isinstance(command, kind)]
    assert len(found) == 1, commands
    return found[0]


def check_sums(control: Control) -> None:
    """Every sum of an engine equals what its requests add up to, and a released engine is at zero."""
    pool = control.pool
    for engine in pool.engines.values():
        resident = [request for request in pool.requests.values() if request.decode_engine == engine.id]
        assert engine.streams == len(resident)
        assert engine.kv_tokens == sum(request.kv_tokens for request in resident)
        assert engine.prefill_tokens == sum(tokens for _, _, tokens in engine.prefills.values())
        assert abs(engine.prefill_backlog_s - sum(cost for _, cost, _ in engine.prefills.values())) < 1e-6
        assert set(engine.prefills) <= set(pool.requests)
    queued = [request for request in pool.requests.values() if request.phase.value == "queued"]
    assert {request.id for request in queued} == {request.id for request in pool.queue}
    check_queue(pool.queue)
    assert {r.id for r in pool.requests.values() if r.phase.value == "held"} == {r.id for r in pool.held}
    check_queue(pool.held)
    seats = {request.id for request in pool.requests.values() if request.phase.value == "seat"}
    assert seats == {request.id for request in pool.seats}
    check_queue(pool.seats)
    for account in pool.accounts:
        own = [request for request in pool.requests.values() if request.share.account is account]
        assert account.open == len(own)
        assert account.waiting == sum(request.phase.value in ("queued", "held") for request in own)


def check_queue(queue: FairQueue) -> None:
    """Every sum of a queue equals what its requests add up to."""
    waiting = list(queue)
    assert len(queue) == len(waiting)
    assert abs(queue.cost_s - sum(request.cost_s for request in waiting)) < 1e-6
    for rank, each in enumerate(queue._classes):
        own = [request for request in waiting if request.share.rank == rank]
        assert each.count == len(own)
        assert abs(each.cost_s - sum(request.cost_s for request in own)) < 1e-6
        assert abs(each.weight - sum(share.weight for share in {request.share for request in own})) < 1e-6
