"""The whole loop with the real control: every request ends once, the same seed gives the same run."""

from collections import Counter
from dataclasses import replace

import msgspec
import pytest

from narwhal.control import Curves
from narwhal.control.commands import AnyCommand, MoveRole, StartDecode, StartPrefill, StartWhole
from narwhal.control.events import AnyEvent, PrefillFinished, RequestArrived, RequestFinished, RoleMoved
from narwhal.simulate.engine_setup import EngineSetup
from narwhal.simulate.faults import Fault
from narwhal.simulate.policies import parse_policy, with_split
from narwhal.simulate.prepare import Ask, prepare
from narwhal.simulate.scenario import Scenario, run, simulation
from narwhal.simulate.score import score
from narwhal.simulate.setup import plain_engines, plain_settings, with_admission
from narwhal.simulate.simulation import Simulation
from narwhal.simulate.workload import Workload


def one(prompt: int, output: int, count: int = 1) -> Workload:
    return Workload("one", [1.0] * count, [prompt] * count, [output] * count, ["x"] * count, 2.0)


def turning(admission: str = "open", seconds: float = 90, mix: str = "turning:code,reas:30") -> Scenario:
    ask = Ask(mix=mix, seconds=seconds, curves="8b-h100", engines=4, split="2p2d", admission=admission)
    return prepare(ask).scenario


def test_a_request_over_two_legs_takes_prefill_transfer_and_decode(curves: Curves) -> None:
    sim = Simulation(plain_engines(2, curves), plain_settings(), one(1000, 3))
    sim.run()
    request = sim.requests[0]
    first = curves.prefill_s(1000) + curves.transfer_s(1000) + curves.interval_s(1, 1000)
    assert request.outcome == "served"
    assert request.ttft_s == pytest.approx(first)
    assert request.tpot_s == pytest.approx((curves.interval_s(1, 1001) + curves.interval_s(1, 1002)) / 2)


def test_a_pair_hands_over_one_request_at_a_time(curves: Curves) -> None:
    slow = msgspec.structs.replace(curves, transfer_t0_s=5.0)
    settings = with_admission(plain_settings(), "open")
    sim = Simulation(plain_engines(2, slow), settings, one(500, 2, count=2))
    sim.run()
    first, second = (request.first_t for request in sim.requests)
    assert second - first >= 5.0


@pytest.mark.parametrize("policy", ["static", "colocated:512", "arrow", "reactive", "projection", "coldswap:5"])
@pytest.mark.parametrize("admission", ["open", "predictive"])
def test_every_request_ends_once(policy: str, admission: str) -> None:
    scenario = turning(admission)
    events: Counter[str] = Counter()
    told: list[int] = []

    def listen(event: AnyEvent, commands: list[AnyCommand]) -> None:
        events[type(event).__name__] += 1
        if isinstance(event, RequestFinished):
            told.append(event.request)

    sim = simulation(scenario, parse_policy(policy), 14.0, 5)
    sim.listener = listen
    sim.run()
    assert events["RequestArrived"] == len(sim.workload)
    assert len(told) == len(set(told))
    ends = Counter(request.outcome for request in sim.requests)
    assert ends[""] == 0
    assert ends["served"] == len(told)
    assert sum(ends.values()) == len(sim.workload)
    for engine in sim.engines.values():
        assert (engine.seqs, engine.held_tokens, engine.kv_tokens) == (0, 0, 0)


def test_control_and_engines_agree_when_all_is_over() -> None:
    sim = simulation(turning(), parse_policy("projection"), 14.0, 7)
    sim.run()
    pool = sim.control.pool
    assert not pool.requests
    assert all(
        engine.streams == 0 and engine.kv_tokens == 0 and not engine.prefills for engine in pool.engines.values()
    )


def test_the_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    def figures(seed: int) -> tuple[object, ...]:
        outcome = run(turning("predictive"), parse_policy("projection"), 14.0, seed)
        return outcome.score, outcome.splits

    assert figures(3) == figures(3)
    assert figures(3) != figures(4)


def test_a_run_in_pieces_is_the_run_in_one() -> None:
    whole, pieces = (simulation(turning(), parse_policy("reactive"), 14.0, 3) for _ in range(2))
    whole.run()
    for t in range(1, 95):
        pieces.run(float(t))
    pieces.run()
    slo = whole.settings.slo
    assert score(whole.requests, whole.workload, slo) == score(pieces.requests, pieces.workload, slo)


def test_requests_of_a_dead_engine_are_served_by_others_and_it_is_readmitted(curves: Curves) -> None:
    scenario = replace(turning(), faults=(Fault("sim/3", 40.0, 60.0), Fault("sim/0", 45.0, 70.0)))
    sim = simulation(scenario, parse_policy("static"), 6.0, 3)
    sim.run()
    ends = Counter(request.outcome for request in sim.requests)
    assert ends[""] == 0
    assert ends["served"] >= 0.95 * len(sim.requests)
    assert all(engine.open for engine in sim.control.pool.engines.values())


def test_a_cold_swap_gives_the_engine_no_work_for_its_seconds() -> None:
    away: dict[str, float] = {}
    lasted: list[float] = []
    meanwhile: list[AnyCommand] = []

    def listen(event: AnyEvent, commands: list[AnyCommand]) -> None:
        if isinstance(event, RoleMoved):
            lasted.append(event.t - away.pop(event.engine))
        for command in commands:
            if isinstance(command, MoveRole):
                away[command.engine] = event.t
            elif isinstance(command, StartPrefill | StartDecode | StartWhole) and command.engine in away:
                meanwhile.append(command)

    sim = simulation(turning(), parse_policy("coldswap:20"), 14.0, 3)
    sim.listener = listen
    sim.run()
    assert lasted
    assert min(lasted) >= 20.0 - 1e-9
    assert not meanwhile


def test_pinned_engines_keep_their_role_in_a_split(curves: Curves) -> None:
    engines = [replace(engine, pin="decode" if engine.id == "sim/0" else None) for engine in plain_engines(4, curves)]
    roles = {engine.id: engine.role for engine in with_split(engines, 2, 2)}
    assert roles == {"sim/0": "decode", "sim/1": "prefill", "sim/2": "prefill", "sim/3": "decode"}


def test_the_true_output_length_is_not_told(curves: Curves) -> None:
    seen: list[int] = []
    sim = Simulation(
        [EngineSetup("a/0", "prefill", curves), EngineSetup("a/1", "decode", curves)],
        plain_settings(),
        one(10, 7),
        listener=lambda event, _: seen.append(event.max_tokens) if isinstance(event, RequestArrived) else None,
    )
    sim.run()
    assert seen == [4096]


@pytest.mark.parametrize(("prior", "true"), [("demo", "8b-h200"), ("8b-h200", "cpu-tiny")])
def test_engines_without_a_profile_are_learned_from_what_they_serve(prior: str, true: str) -> None:
    mix = "steady:code,conv:30"
    ask = Ask(mix=mix, seconds=120, curves=true, engines=4, split="2p2d", admission="predictive", prior=prior)
    prepared = prepare(ask)
    sim = simulation(prepared.scenario, parse_policy("reactive"), 0.5 * prepared.full_rps, 11)
    assert not sim.control.pool.trusted
    sim.run()
    assert sim.control.pool.trusted
    assert not sim.moves
    curves = prepared.scenario.engines[0].curves
    engines = sim.control.pool.engines.values()
    prompts = sorted(request.prompt_tokens for request in sim.requests)
    for n in (prompts[len(prompts) * share // 100] for share in (10, 50, 90)):
        assert all(engine.curves.prefill_s(n) == pytest.approx(curves.prefill_s(n), rel=0.15) for engine in engines)
    batches = seen_batches(sim)
    for m, kv in batches:
        assert all(e.curves.interval_s(m, kv) == pytest.approx(curves.interval_s(m, kv), rel=0.15) for e in engines)


def seen_batches(sim: Simulation) -> list[tuple[int, int]]:
    """Batches like those that a run had: the mean one, and half and twice as many streams."""
    served = [request for request in sim.requests if request.outcome == "served" and request.total_tokens > 1]
    busy_s = sum(request.finished_t - request.first_t for request in served)
    mean = max(busy_s / sim.workload.seconds / 2, 1.0)
    tokens = sum(request.prompt_tokens + request.total_tokens / 2 for request in served) / len(served)
    return [(round(mean * share), round(mean * share * tokens)) for share in (0.5, 1, 2)]


def test_on_a_shared_card_a_handoff_goes_at_half_speed_beside_a_prompt(curves: Curves) -> None:
    slow = msgspec.structs.replace(curves, transfer_t0_s=0.02)
    settings = with_admission(plain_settings(), "open")

    def handoff_s(device: str, prompts: list[int]) -> float:
        """From the end of the first request's prefill to its first token."""
        engines = [replace(engine, device=device) for engine in with_split(plain_engines(2, slow), 1, 1)]
        workload = Workload("two", [1.0] * len(prompts), prompts, [2] * len(prompts), ["x"] * len(prompts), 2.0)
        ended: list[float] = []

        def listen(event: AnyEvent, commands: list[AnyCommand]) -> None:
            if isinstance(event, PrefillFinished) and event.request == 0:
                ended.append(event.t)

        sim = Simulation(engines, settings, workload, listener=listen)
        sim.run()
        return sim.requests[0].first_t - ended[0]

    step_s, alone_s = slow.interval_s(1, 1000), slow.transfer_s(1000)
    assert handoff_s("", [1000, 8000]) == pytest.approx(alone_s + step_s)  # nothing is shared
    assert handoff_s("card", [1000]) == pytest.approx(alone_s + step_s / 2)  # nobody else computes
    beside_s = handoff_s("card", [1000, 8000])  # the second prompt is computed all the while
    assert beside_s == pytest.approx(2 * alone_s + step_s)
