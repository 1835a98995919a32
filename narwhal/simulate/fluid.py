"""Fluid estimates: how much of an engine one request of a class takes in each phase.

They set the rates of the phases of a mix (equal load in each, as in the control study), the split that a run starts
from, and the bounds of the search for goodput.
"""

import random
from dataclasses import dataclass

from narwhal.control import Curves
from narwhal.simulate.bodies import Draw

SAMPLES = 4000


@dataclass(frozen=True, slots=True)
class Work:
    """Engine seconds that a request takes."""

    prefill_s: float
    decode_s: float

    @property
    def total_s(self) -> float:
        """Engine seconds in both phases."""
        return self.prefill_s + self.decode_s

    @property
    def prefill_share(self) -> float:
        """Share of prefill in the work."""
        return self.prefill_s / self.total_s


def work_of(bodies: list[tuple[int, int]], curves: Curves, tpot_s: float) -> Work:
    """Mean work of requests: prefill by its curve, decode at the largest batch that keeps the TPOT target."""
    prefill_s = sum(_prefill_s(prompt, curves) for prompt, _ in bodies) / len(bodies)
    tokens = sum(output for _, output in bodies)
    kv = sum(output * (prompt + output / 2) for prompt, output in bodies) / tokens
    room = [curves.max_num_seqs, curves.kv_capacity_tokens / kv]
    per_stream_s = curves.d1_s + curves.d2_s * kv
    if per_stream_s > 0 and tpot_s > curves.d0_s:
        room.append((tpot_s - curves.d0_s) / per_stream_s)
    batch = max(min(room), 1.0)
    interval_s = curves.d0_s + per_stream_s * batch
    return Work(prefill_s, tokens / len(bodies) * interval_s / batch)


def class_work(draw: Draw, curves: Curves, tpot_s: float) -> Work:
    """Mean work of a class, from a fixed sample of it."""
    rng = random.Random(0)
    return work_of([draw(rng) for _ in range(SAMPLES)], curves, tpot_s)


def _prefill_s(prompt: int, curves: Curves) -> float:
    chunks = -(-prompt // curves.chunk_tokens)
    return max(curves.t_min_s, chunks * curves.a_s + curves.b_s * prompt + curves.c_s * prompt * prompt)
