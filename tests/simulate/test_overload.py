"""A hundred times what the engines serve, under the control that serves: refusals, and nothing else goes wrong."""

import random
from collections import Counter

import pytest

from narwhal.control import Curves
from narwhal.simulate.fluid import work_of
from narwhal.simulate.setup import STUDY_SLO, plain_engines, plain_settings, with_admission
from narwhal.simulate.simulation import Simulation
from narwhal.simulate.workload import Workload

TIMES = 100
PROMPT, OUTPUT = 1500, 200
SECONDS = 12.0


@pytest.mark.parametrize("seed", [1, 2])
def test_those_who_are_let_in_at_a_hundred_times_the_load_keep_their_targets(curves: Curves, seed: int) -> None:
    engines, rng = plain_engines(2, curves), random.Random(seed)
    full_rps = len(engines) / work_of([(PROMPT, OUTPUT)], curves, STUDY_SLO.tpot_s).total_s
    times, t = [], rng.expovariate(TIMES * full_rps)
    while t < SECONDS:
        times.append(t)
        t += rng.expovariate(TIMES * full_rps)
    prompts, outputs = ([max(round(n * rng.uniform(0.5, 1.5)), 1) for _ in times] for n in (PROMPT, OUTPUT))
    workload = Workload("overload", times, prompts, outputs, ["a"] * len(times), SECONDS, ())
    sim = Simulation(engines, with_admission(plain_settings(), "predictive"), workload)
    sim.run()
    ends = Counter(request.outcome for request in sim.requests)
    served = [request for request in sim.requests if request.outcome == "served"]
    met = sum(r.ttft_s <= STUDY_SLO.ttft_for(prompts[r.id]) and r.tpot_s <= STUDY_SLO.tpot_s for r in served)
    print(f"{full_rps:.1f} requests/s fill it; {len(times)} offered: {dict(ends)}, {met} within their targets")
    assert set(ends) == {"served", "refused"}
    assert len(served) > 0.3 * full_rps * SECONDS
    assert met >= 0.9 * len(served)
    assert not sim.control.pool.requests
