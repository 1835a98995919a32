import random
from collections import Counter

import pytest

from narwhal.control import Curves
from narwhal.simulate.bodies import TrafficError, classes
from narwhal.simulate.fluid import class_work
from narwhal.simulate.mixes import make_workload, parse_mix
from narwhal.simulate.workload import Workload

DRAWS = classes()


def make(text: str, curves: Curves, rate: float = 20.0, seconds: float = 600.0, seed: int = 1) -> Workload:
    work = {name: class_work(draw, curves, 0.05).total_s for name, draw in DRAWS.items()}
    return make_workload(parse_mix(text, DRAWS), DRAWS, work, rate_rps=rate, seconds=seconds, seed=seed)


@pytest.mark.parametrize(("name", "prompt", "output"), [("code", 2048, 28), ("conv", 1155, 211)])
def test_the_tables_have_the_means_of_their_traces(name: str, prompt: int, output: int) -> None:
    rng = random.Random(1)
    bodies = [DRAWS[name](rng) for _ in range(20_000)]
    assert sum(body[0] for body in bodies) / len(bodies) == pytest.approx(prompt, rel=0.04)
    assert sum(body[1] for body in bodies) / len(bodies) == pytest.approx(output, rel=0.08)


def test_reasoning_is_conversation_with_long_answers() -> None:
    rng = random.Random(1)
    bodies = [DRAWS["reas"](rng) for _ in range(5000)]
    assert max(output for _, output in bodies) <= 4000
    assert sum(output for _, output in bodies) / len(bodies) == pytest.approx(5 * 211, rel=0.1)


def test_prefill_shares_are_those_of_the_control_study(curves: Curves) -> None:
    shares = {name: class_work(DRAWS[name], curves, 0.05).prefill_share for name in ("code", "conv", "reas")}
    assert shares == {
        "code": pytest.approx(0.956, abs=0.02),
        "conv": pytest.approx(0.707, abs=0.03),
        "reas": pytest.approx(0.249, abs=0.05),
    }


@pytest.mark.parametrize("text", ["turning:code,reas:60", "sin:conv,reas:120", "bursty:conv,code:60", "steady:conv"])
def test_a_mix_has_its_rate_and_is_repeated_by_its_seed(text: str, curves: Curves) -> None:
    workload = make(text, curves)
    assert workload.rate_rps == pytest.approx(20.0, rel=0.06)
    assert workload.times_s == sorted(workload.times_s)
    assert workload == make(text, curves)
    assert workload.times_s != make(text, curves, seed=2).times_s


def test_a_turning_mix_has_one_class_in_each_phase_and_equal_load(curves: Curves) -> None:
    workload = make("turning:code,reas:60", curves)
    assert workload.turns_s == tuple(60.0 * n for n in range(1, 10))
    phase = Counter((int(t // 60) % 2, name) for t, name in zip(workload.times_s, workload.classes, strict=True))
    assert set(phase) == {(0, "code"), (1, "reas")}
    work = {name: class_work(DRAWS[name], curves, 0.05).total_s for name in ("code", "reas")}
    assert phase[0, "code"] * work["code"] == pytest.approx(phase[1, "reas"] * work["reas"], rel=0.1)


def test_a_higher_rate_brings_the_same_requests_sooner(curves: Curves) -> None:
    slow, fast = make("steady:conv", curves, rate=10.0), make("steady:conv", curves, rate=20.0)
    assert fast.prompts[:1000] == slow.prompts[:1000]
    assert fast.times_s[500] < slow.times_s[500]


@pytest.mark.parametrize(
    "text", ["turning", "turning:code:60", "turning:code,reas", "turning:code,reas:soon", "waves:code,reas:60",
             "sin:code,conv,reas:60", "turning:code,nothing:60", "turning:code,reas:0"],
)  # fmt: skip
def test_a_mix_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(TrafficError):
        parse_mix(text, DRAWS)
