"""Two tenants on one simulated fleet, under the very control that serves: shares by weight, and no harm by greed."""

import random
from dataclasses import dataclass

import pytest

from narwhal.control import Curves, Settings
from narwhal.fleet.model import TenantLimits
from narwhal.simulate.setup import STUDY_SLO, plain_engines, plain_settings, with_admission
from narwhal.simulate.simulation import Simulation
from narwhal.simulate.workload import Workload

SECONDS = 60.0
WARM_S = 15.0


@dataclass(frozen=True)
class Load:
    """Poisson arrivals of one tenant."""

    tenant: str
    rps: float
    prompt_tokens: int
    output_tokens: int


def workload(*loads: Load, seed: int = 7) -> Workload:
    """The loads, merged; lengths vary by half either way."""
    rng = random.Random(seed)
    rows = []
    for load in loads:
        t = rng.expovariate(load.rps)
        while t < SECONDS:
            lengths = (max(round(n * rng.uniform(0.5, 1.5)), 1) for n in (load.prompt_tokens, load.output_tokens))
            rows.append((t, *lengths, load.tenant))
            t += rng.expovariate(load.rps)
    rows.sort()
    times, prompts, outputs, names = zip(*rows, strict=True)
    return Workload("tenants", list(times), list(prompts), list(outputs), list(names), SECONDS, (), names)


def simulate(
    curves: Curves, admission: str, tenants: tuple[TenantLimits, ...], *loads: Load, moves: bool = True
) -> Simulation:
    settings: Settings = with_admission(plain_settings(), admission)
    settings.tenants = tenants
    settings.controller = settings.controller.model_copy(update={"enabled": moves})
    sim = Simulation(plain_engines(4, curves), settings, workload(*loads))
    sim.run()
    return sim


def served_tokens(sim: Simulation, tenant: str, since_t: float = WARM_S) -> int:
    """Prompt and completion tokens of requests that got their first token after the warm-up and before the end."""
    return sum(
        sim.workload.prompts[r.id] + r.total_tokens
        for r in sim.requests
        if sim.workload.tenant(r.id) == tenant and r.outcome == "served" and since_t <= r.first_t < SECONDS
    )


PROMPT, OUTPUT = 3000, 60
BIG_AND_SMALL = (TenantLimits(name="big", weight=3), TenantLimits(name="small", weight=1))


def test_weights_of_three_to_one_get_three_to_one_of_the_tokens(curves: Curves) -> None:
    loads = [Load(tenant.name, 60.0, PROMPT, OUTPUT) for tenant in BIG_AND_SMALL]
    sim = simulate(curves, "predictive", BIG_AND_SMALL, *loads)
    big, small = served_tokens(sim, "big"), served_tokens(sim, "small")
    print(f"{big} and {small} tokens, ratio {big / small:.2f}")
    assert 2.7 <= big / small <= 3.3


@pytest.mark.parametrize(("prompt", "output"), [(300, 600), (1000, 300)])
@pytest.mark.parametrize("moves", [False, True])
def test_weights_hold_where_decode_is_what_is_short(curves: Curves, prompt: int, output: int, moves: bool) -> None:
    """Over the whole run: an empty fleet takes everyone in, and what that gave too much is given back later."""
    loads = [Load(tenant.name, 90.0, prompt, output) for tenant in BIG_AND_SMALL]
    sim = simulate(curves, "predictive", BIG_AND_SMALL, *loads, moves=moves)
    big, small = served_tokens(sim, "big", 0.0), served_tokens(sim, "small", 0.0)
    print(f"{big} and {small} tokens, ratio {big / small:.2f}")
    assert 2.7 <= big / small <= 3.3


def test_a_greedy_tenant_delays_no_other_beyond_its_target(curves: Curves) -> None:
    tenants = (TenantLimits(name="greedy"), TenantLimits(name="light"))
    sim = simulate(curves, "predictive", tenants, Load("greedy", 90, PROMPT, OUTPUT), Load("light", 1, PROMPT, OUTPUT))
    light = [r for r in sim.requests if sim.workload.tenant(r.id) == "light"]
    late = [r for r in light if r.outcome != "served" or r.ttft_s > STUDY_SLO.ttft_for(sim.workload.prompts[r.id])]
    worst = max(r.ttft_s for r in light if r.outcome == "served")
    refused = sum(r.outcome == "refused" for r in sim.requests)
    print(f"{len(late)} of {len(light)} late, slowest {worst:.2f} s, {refused} of {len(sim.requests)} refused")
    assert not late
