from narwhal.simulate.clairvoyant import move_to, rollouts
from narwhal.simulate.policies import parse_policy
from narwhal.simulate.prepare import Ask, prepare
from narwhal.simulate.scenario import run, simulation


def test_a_rollout_changes_nothing_in_the_run_it_copies() -> None:
    ask = Ask(mix="turning:code,reas:20", seconds=60, curves="8b-h100", engines=4, split="2p2d", admission="open")
    scenario = prepare(ask).scenario
    sim = simulation(scenario, parse_policy("static"), 12.0, 3)
    sim.run(15.0)
    values = rollouts(sim, [1, 2, 3])
    assert values == rollouts(sim, [1, 2, 3])
    assert sim.control.pool.split() == (2, 2)
    move_to(sim, 3)
    assert sim.control.pool.split() == (3, 1)


def test_knowing_the_future_beats_a_static_split() -> None:
    ask = Ask(mix="turning:code,reas:20", seconds=60, curves="8b-h100", engines=4, split="2p2d", admission="open")
    scenario = prepare(ask).scenario
    reached = {name: run(scenario, parse_policy(name), 15.0, 3) for name in ("static", "clairvoyant")}
    assert reached["clairvoyant"].moves > 0
    assert (reached["clairvoyant"].score.attainment or 0) > (reached["static"].score.attainment or 0)
