"""Failures: an engine process dies, with all that it holds, and comes back as another generation."""

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from narwhal.control.commands import TryPair
from narwhal.control.events import EngineDown, FailureCause, LegFailed, Outcome, PairTried
from narwhal.simulate.engine import Engine
from narwhal.simulate.request import Place, Request

if TYPE_CHECKING:
    from narwhal.simulate.simulation import Simulation


@dataclass(frozen=True, slots=True)
class Fault:
    """An engine process dies, and comes back."""

    engine: str
    down_t: float
    up_t: float = inf


def engine_dies(sim: "Simulation", engine_id: str) -> None:
    """The process ends: its requests fail, and so do handoffs that are being fetched from it."""
    dead = sim.engines[engine_id]
    dead.version += 1
    fresh = Engine(engine_id, dead.curves)
    fresh.alive = False
    sim.engines[engine_id] = fresh
    for request in sim.requests:
        if request.outcome:
            continue
        here = request.engine == engine_id and request.place not in (Place.ROUTER, Place.HANDOFF)
        pinned = request.producer == engine_id and request.producer_tokens > 0
        if pinned:
            request.producer_tokens = 0
        if here or (pinned and request.place is Place.TRANSFER):
            _fail(sim, request, dead, here=here)
    sim.feed(EngineDown(sim.t, engine_id, "connection", hard=True))


def _fail(sim: "Simulation", request: Request, dead: Engine, *, here: bool) -> None:
    holder = request.engine
    if here:
        if request.id in dead.streams:
            request.produced = request.produced_at(dead.produced(sim.t))
        request.place, request.engine = Place.ROUTER, ""
    cause: FailureCause = "connection" if here else "handoff"
    sim.feed(LegFailed(sim.t, request.id, request.sent, holder, cause, request.first_t >= 0))


def engine_returns(sim: "Simulation", engine_id: str) -> None:
    """Another process answers; the router's looks find it."""
    sim.engines[engine_id].alive = True
    sim.generations[engine_id] = sim.generations.get(engine_id, 0) + 1
    recovery = sim.settings.recovery
    for look in range(recovery.readmit_after + 1):
        sim.at(sim.t + look * recovery.probe_interval_s, _look, sim, engine_id)


def _look(sim: "Simulation", engine_id: str) -> None:
    sim.look(sim.engines[engine_id])


def try_pair(sim: "Simulation", command: TryPair) -> None:
    """A handoff works where both processes live; its time is not simulated."""
    producer, consumer = (sim.engines[name] for name in (command.producer, command.consumer))
    outcome: Outcome = "leg_1" if not producer.alive else "right" if consumer.alive else "leg_2"
    sim.feed(PairTried(sim.t, command.number, command.producer, command.consumer, outcome))
