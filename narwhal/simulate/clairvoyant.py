"""A mover that knows the future: it tries splits on copies of the whole simulation and keeps the best.

Every `STEP_S` it forks one child process for each split within `REACH` moves; each child moves to its split, runs
the true future for `HOLD_S`, and writes how many requests met their targets. Forking copies control, engines and
queues exactly and at once, whatever they consist of. It is a strong reference, not an upper bound.
"""

import gc
import os
import struct

from narwhal.control import events
from narwhal.control.state import Engine
from narwhal.fleet.model import Role
from narwhal.simulate.mover import Mover
from narwhal.simulate.request import Request
from narwhal.simulate.score import met
from narwhal.simulate.simulation import Simulation

STEP_S = 2.0
HOLD_S = 10.0
REACH = 3
MOVE_COST = 0.05
"""Requests that a move has to win to be worth it: ties keep the split."""


class Clairvoyant(Mover):
    """Greedy rollout with the true future."""

    def __init__(self) -> None:
        self.next_t = 0.0

    def tick(self, sim: Simulation) -> None:
        """Try the splits around the present one, when it is time."""
        if sim.t < self.next_t or sim.t >= sim.workload.seconds:
            return
        self.next_t = sim.t + STEP_S
        prefill, decode = sim.control.pool.split()
        splits = [prefill + change for change in range(-REACH, REACH + 1) if 0 < prefill + change < prefill + decode]
        values = dict(zip(splits, rollouts(sim, splits), strict=True))
        best = max(splits, key=lambda split: (values[split] - MOVE_COST * abs(split - prefill), split == prefill))
        move_to(sim, best)


def rollouts(sim: Simulation, splits: list[int]) -> list[float]:
    """What each split is worth over the next `HOLD_S` seconds: requests that meet their targets, in copies of `sim`."""
    gc.freeze()  # the collector would write to, and so copy, every page that the children share
    children = [_fork(sim, split) for split in splits]
    values = []
    for child, pipe in children:
        with os.fdopen(pipe, "rb") as reader:
            data = reader.read()
        os.waitpid(child, 0)
        if len(data) != 8:
            raise RuntimeError("a rollout of the clairvoyant policy ended without a result")
        values.append(float(struct.unpack("d", data)[0]))
    gc.unfreeze()
    return values


def _fork(sim: Simulation, split: int) -> tuple[int, int]:
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(writer)
        return child, reader
    code = 1
    try:
        gc.disable()
        os.close(reader)
        os.write(writer, struct.pack("d", _value(sim, split)))
        code = 0
    finally:
        os._exit(code)


def _value(sim: Simulation, split: int) -> float:
    sim.mover = Mover()
    before = [request for request in sim.requests if not request.outcome]
    first = len(sim.requests)
    move_to(sim, split)
    sim.run(sim.t + HOLD_S)
    return sum(_credit(sim, request) for request in [*before, *sim.requests[first:]])


def _credit(sim: Simulation, request: Request) -> float:
    """1 for a request that met its targets, or has met TTFT and is at pace; half of it while that is open."""
    slo = sim.settings.slo
    prompt = sim.workload.prompts[request.id]
    if request.outcome:
        return float(met(request, prompt, slo))
    if request.first_t < 0:
        return 0.5 * (sim.t - request.arrived_t < 0.5 * slo.ttft_for(prompt))
    if request.ttft_s > slo.ttft_for(prompt):
        return 0.0
    produced = request.produced_at(sim.engines[request.engine].produced(sim.t)) if request.engine else 1
    return float(sim.t - request.first_t <= slo.tpot_s * max(produced - 1, 1) + 0.1)


def move_to(sim: Simulation, prefill: int) -> None:
    """Move engines, the emptiest first, until `prefill` of them prefill; control's guards hold what they hold."""
    engines = [engine for engine in sim.control.pool.engines.values() if engine.live and engine.pin is None]
    change = prefill - sim.control.pool.split()[0]
    source: Role = "decode" if change > 0 else "prefill"
    target: Role = "prefill" if change > 0 else "decode"
    donors = sorted((engine for engine in engines if engine.role == source), key=lambda one: _weight(sim, one))
    for engine in donors[: abs(change)]:
        sim.feed(events.MoveRequested(sim.t, engine.id, target))


def _weight(sim: Simulation, engine: Engine) -> tuple[float, str]:
    load = engine.occupancy(sim.settings.slo.tpot_s) if engine.role == "decode" else engine.backlog_s(sim.t)
    return load, engine.id
