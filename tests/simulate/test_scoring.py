from collections.abc import Callable

import pytest

from narwhal.fleet.model import Slo
from narwhal.simulate.policies import PolicyError, parse_policy, parse_split
from narwhal.simulate.prepare import Ask, prepare
from narwhal.simulate.request import Request
from narwhal.simulate.scenario import bisect_rate, passes, run
from narwhal.simulate.score import percentiles, score
from narwhal.simulate.workload import Workload

SLO = Slo(ttft_s=2.0, tpot_s=0.05)


def served(number: int, t: float, ttft_s: float = 1.0, tpot_s: float = 0.01, output: int = 11) -> Request:
    request = Request(number, t, 100, output)
    request.first_t = t + ttft_s
    request.finished_t = request.first_t + tpot_s * (output - 1)
    request.outcome = "served"
    return request


def judged(requests: list[Request], seconds: float = 100.0, turns: tuple[float, ...] = ()) -> Workload:
    n = len(requests)
    return Workload("w", [r.arrived_t for r in requests], [100] * n, [11] * n, ["x"] * n, seconds, turns)


def test_attainment_counts_what_was_offered_after_the_first_seconds() -> None:
    refused, lost = Request(4, 40.0, 100, 11), Request(5, 41.0, 100, 11)
    refused.outcome = "refused"
    late, slow = served(2, 50.0, ttft_s=2.5), served(3, 51.0, tpot_s=0.06)
    requests = [served(0, 10.0, ttft_s=9.0), served(1, 35.0), late, slow, refused, lost]
    result = score(requests, judged(requests), SLO)
    assert (result.offered, result.refused, result.failed) == (5, 1, 1)
    assert result.attainment == pytest.approx(1 / 5)


def test_time_to_adapt_is_the_first_of_two_good_windows() -> None:
    bad = {60, 61, 66, 72}  # windows 60-65, 65-70 and 70-75 miss
    requests = [served(n, 30.0 + n, ttft_s=5.0 if 30 + n in bad else 1.0) for n in range(70)]
    result = score(requests, judged(requests, turns=(60.0,)), SLO)
    assert result.adapt_s == (15.0,)


def test_a_turn_that_is_never_adapted_to_takes_its_phase() -> None:
    requests = [served(n, 30.0 + n, ttft_s=1.0 if n < 30 else 5.0) for n in range(70)]
    assert score(requests, judged(requests, turns=(60.0,)), SLO).adapt_s == (40.0,)


def test_percentiles_are_nearest_ranks() -> None:
    assert percentiles([float(n) for n in range(101)]) == (50.0, 90.0, 99.0)
    assert percentiles([]) is None


@pytest.mark.parametrize("limit", [3.0, 10.0, 11.4, 37.0])
def test_bisection_finds_the_highest_passing_rate(limit: float) -> None:
    asked: list[float] = []

    def good(rate: float) -> bool:
        asked.append(rate)
        return rate <= limit

    found = bisect_rate(good, 10.0)
    assert limit / 1.015 <= found <= limit
    assert len(asked) <= 12


@pytest.mark.parametrize(("good", "found"), [(lambda rate: False, 0.0), (lambda rate: True, 40.0)])
def test_bisection_gives_up_far_from_its_guess(good: Callable[[float], bool], found: float) -> None:
    assert bisect_rate(good, 10.0) == found


def test_giving_up_early_judges_as_the_whole_run_does() -> None:
    ask = Ask(mix="turning:code,reas:20", seconds=60, curves="8b-h100", engines=4, split="2p2d", admission="open")
    scenario, policy = prepare(ask).scenario, parse_policy("static")
    for rate in (6.0, 12.0, 20.0):
        attainment = run(scenario, policy, rate, 3).score.attainment
        assert attainment is not None
        assert passes(scenario, policy, rate, 3) == (attainment >= 0.9)


@pytest.mark.parametrize("text", ["fast", "static:3p", "colocated:many", "coldswap:-1", "reactive:5", "arrow:1"])
def test_a_policy_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(PolicyError):
        parse_policy(text)


def test_a_split_is_read() -> None:
    assert parse_split("3p5d") == (3, 5)
