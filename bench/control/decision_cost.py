"""What one decision of the role controller costs: `python bench/control/decision_cost.py [engines] [residents]`.

A fleet in motion (every engine loaded, a queue, flows in both phases) is evaluated again and again by each policy;
the time is that of `RoleController.tick` with its record. The demand events between two evaluations are timed apart.
CPU time of the thread, so that other work on the machine does not count.
"""

import statistics
import sys
import time

from narwhal.control import Curves, Settings
from narwhal.control.demand import Demand
from narwhal.control.roles import RoleController
from narwhal.control.state import Engine, Phase, Pool, Request
from narwhal.fleet import load_profile
from narwhal.fleet.model import Controller, Recovery, Serving, Slo

EVALUATIONS = 150
EVENTS_PER_S = 1000


def loaded_pool(engines: int, residents: int) -> Pool:
    """Half prefill, half decode engines, with residents spread over decode and a queue of 100 prompts."""
    pool, curves = Pool(), Curves.from_profile(load_profile("8b-h100"))
    for number in range(engines):
        engine = Engine(f"gpu-{number}/0", "prefill" if number % 2 == 0 else "decode", curves)
        engine.admitted = engine.measured = True
        pool.engines[engine.id] = engine
    pool.refresh()
    share = pool.accounts["default"].share(None)
    for number in range(residents):
        engine = pool.decode[number % len(pool.decode)]
        request = Request(number, share, "", 1000, 500)
        request.phase, request.decode_engine, request.ttft_s = Phase.DECODE, engine.id, 2.0
        pool.requests[number] = request
        engine.streams += 1
        engine.kv_tokens += 1500
    for number in range(residents, residents + 2 * len(pool.prefill) + 100):
        request = Request(number, share, "", 1000, 500)
        request.cost_s, request.ttft_s = 0.06, 2.0
        pool.requests[number] = request
        engine = pool.prefill[number % len(pool.prefill)]
        if len(engine.prefills) < 2:
            request.phase = Phase.PREFILL
            engine.prefills[number] = (0.0, request.cost_s, 1000)
            engine.prefill_backlog_s += request.cost_s
        else:
            pool.queue.push(request)
    return pool


def measure(policy: str, engines: int, residents: int) -> tuple[list[float], float, float]:
    """Milliseconds of each evaluation, and microseconds of a demand event: in the mean, and the longest of a group."""
    controller = Controller.model_validate({"policy": policy, "advisory": True})
    settings = Settings(Slo(ttft_s=2.0, tpot_s=0.05), Serving(), controller, Recovery())
    pool = loaded_pool(engines, residents)
    demand = Demand(settings, pool)
    roles = RoleController(settings, pool, demand)
    cost_ms: list[float] = []
    events_s = longest_s = 0.0
    for second in range(EVALUATIONS):
        begin = time.thread_time()
        for step in range(EVENTS_PER_S):
            t = second + step / EVENTS_PER_S
            group = time.thread_time()
            demand.arrived(t, 0.06)
            demand.entered_decode(t, 0.004)
            demand.left_decode(t, 0.006, t - 10.0)
            longest_s = max(longest_s, time.thread_time() - group)
        events_s += time.thread_time() - begin
        begin = time.thread_time()
        roles.tick(second + 1.0)
        cost_ms.append((time.thread_time() - begin) * 1000)
    return cost_ms, events_s / (EVALUATIONS * EVENTS_PER_S * 3) * 1e6, longest_s * 1e6


def main() -> None:
    """Print median, 99th percentile and largest of both policies."""
    engines = int(sys.argv[1]) if len(sys.argv) > 1 else 64
    residents = int(sys.argv[2]) if len(sys.argv) > 2 else 2000
    for policy in ("reactive", "projection"):
        cost_ms, event_us, longest_us = measure(policy, engines, residents)
        cost_ms.sort()
        print(
            f"{policy}: {engines} engines, {residents} residents: median {statistics.median(cost_ms):.2f} ms, "
            f"p99 {cost_ms[int(len(cost_ms) * 0.99)]:.2f} ms, max {cost_ms[-1]:.2f} ms; "
            f"{event_us:.1f} us per demand event, at most {longest_us:.0f} us for three"
        )


if __name__ == "__main__":
    main()
