"""A pool made by hand with its role controller, for tests that set what engines carry instead of serving requests."""

from typing import Any

from narwhal.control import Curves, Settings
from narwhal.control.commands import AnyCommand, Decided, MoveRole
from narwhal.control.demand import Demand
from narwhal.control.records import Decision, Guard
from narwhal.control.roles import RoleController
from narwhal.control.state import Engine, Phase, Pool, Request
from narwhal.fleet.model import Controller, Recovery, Serving, Slo

CURVES = Curves(
    t_min_s=0.0,
    a_s=0.0,
    b_s=0.001,
    c_s=0.0,
    d0_s=0.01,
    d1_s=1e-6,
    d2_s=0.0,
    transfer_t0_s=0.001,
    transfer_bytes_per_s=1e9,
    kv_bytes_per_token=1000,
    kv_capacity_tokens=1_000_000,
    max_num_seqs=100,
    chunk_tokens=1000,
)
"""1,000 prompt tokens a second; a stream is a hundredth of a decode engine."""

ARRIVALS_PER_S = 10


def settings(policy: str = "reactive", admission: str = "open", **controller: Any) -> Settings:
    """Settings with a TTFT target of 2 s; keywords go to the controller section."""
    return Settings(
        slo=Slo(ttft_s=2.0, tpot_s=0.05),
        serving=Serving.model_validate({"admission": admission}),
        controller=Controller.model_validate({"policy": policy, **controller}),
        recovery=Recovery(),
    )


class HandFleet:
    """Engines `e0`, `e1`, … with roles by letter; time goes on in `run`, moves are acknowledged at once."""

    def __init__(self, roles: str, policy: str = "reactive", admission: str = "open", **controller: Any) -> None:
        self.settings = settings(policy, admission, **controller)
        self.pool = Pool()
        self.demand = Demand(self.settings, self.pool)
        self.roles = RoleController(self.settings, self.pool, self.demand)
        self.t = 0.0
        self.decided: list[Decision] = []
        self.moved: list[tuple[float, str, str]] = []
        """(t, engine, role) of every move."""
        for number, letter in enumerate(roles):
            engine = Engine(f"e{number}", "prefill" if letter == "p" else "decode", CURVES)
            engine.admitted = engine.measured = True
            self.pool.engines[engine.id] = engine
        self.pool.refresh()

    def __getitem__(self, name: str) -> Engine:
        return self.pool.engines[name]

    @property
    def split(self) -> str:
        """Roles by letter, in order of engines."""
        return "".join(engine.role[0] for engine in self.pool.engines.values())

    @property
    def last(self) -> Decision:
        """The latest decision, reported or not."""
        assert self.roles.last is not None
        return self.roles.last

    def do(self, commands: list[AnyCommand]) -> list[AnyCommand]:
        """Keep decisions, carry moves out."""
        for command in commands:
            if isinstance(command, Decided):
                self.decided.append(command.decision)
            if isinstance(command, MoveRole):
                self.moved.append((self.t, command.engine, command.role))
                self.roles.moved(self.t, command.engine, command.role, command.epoch)
        self.pool.refresh()
        return commands

    def decode(self, streams: int, *names: str) -> None:
        """Put so many streams on decode engines: those named, else all that decode now."""
        for engine in self.pool.engines.values():
            if engine.id in names or (not names and engine.role == "decode"):
                engine.streams = streams

    def run(self, seconds: int, prefill: float = 0.0, decode: float = 0.0, per_s: int = ARRIVALS_PER_S) -> None:
        """Offer `prefill` engines' worth of prompts and `decode` of occupancy each second; tick once a second."""
        for _ in range(seconds):
            self.offer(1, prefill, decode, per_s)
            self.do(self.roles.tick(self.t))

    def offer(self, seconds: int, prefill: float = 0.0, decode: float = 0.0, per_s: int = ARRIVALS_PER_S) -> None:
        """The same without ticks: what the controller finds when it looks for the first time."""
        for _ in range(seconds):
            for _ in range(per_s):
                self.t += 1 / per_s
                self.demand.arrived(self.t, prefill / per_s)
                self.demand.entered_decode(self.t, decode / per_s)
            self.t = float(round(self.t))

    def idle(self, seconds: int) -> None:
        """Tick once a second while nothing arrives."""
        for _ in range(seconds):
            self.t += 1.0
            self.do(self.roles.tick(self.t))

    def queue(self, number: int, cost_s: float = 0.1, arrived_t: float = 0.0) -> Request:
        """A prompt that waits in the router."""
        request = self.request(number, arrived_t)
        request.cost_s = cost_s
        self.pool.queue.push(request)
        return request

    def send(self, number: int, engine: str, cost_s: float, arrived_t: float = 0.0) -> None:
        """A prompt that was sent to an engine."""
        self.request(number, arrived_t).phase = Phase.PREFILL
        self[engine].prefills[number] = (arrived_t, cost_s, 100)
        self[engine].prefill_backlog_s += cost_s

    def request(self, number: int, arrived_t: float) -> Request:
        """A request with a TTFT target of 2 s."""
        request = Request(number, self.pool.accounts["default"].share(None), "", 100, 50)
        request.arrived_t, request.ttft_s = arrived_t, 2.0
        self.pool.requests[number] = request
        return request


def guard(decision: Decision, name: str) -> Guard:
    """The guard of a decision by name; the last, where several engines were asked."""
    found = [each for each in decision.guards if each.name == name]
    assert found, (name, decision)
    return found[-1]
