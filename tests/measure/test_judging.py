import pytest

from narwhal.fleet.model import Slo
from narwhal.measure import (
    Adaptation,
    Outcome,
    Phase,
    Planned,
    meets,
    poisson,
    recent_attainment,
    score,
    time_to_adapt,
    windows,
)

SLO = Slo(ttft_s=1.0, tpot_s=0.1)


def served(sent_s: float = 0.0, ttft_s: float = 0.5, tpot_s: float = 0.05, tokens: int = 11) -> Outcome:
    first_s = sent_s + ttft_s
    last_s = first_s + tpot_s * (tokens - 1)
    return Outcome(Planned(sent_s, 10, tokens, "x"), sent_s, "served", 200, first_s, last_s, tokens, ended_s=last_s)


def missed(sent_s: float = 0.0, result: str = "refused") -> Outcome:
    return Outcome(Planned(sent_s, 10, 5, "x"), sent_s, result, 429, ended_s=sent_s)  # type: ignore[arg-type]


def test_a_request_attains_only_when_both_targets_are_met() -> None:
    assert meets(served(), SLO)
    assert not meets(served(ttft_s=1.1), SLO)
    assert not meets(served(tpot_s=0.11), SLO)
    assert meets(served(tokens=1), SLO)  # one token has no gap


@pytest.mark.parametrize("result", ["refused", "failed", "cut", "cancelled", "running"])
def test_whatever_was_not_served_counts_as_offered_and_missed(result: str) -> None:
    judged = score([served(), missed(result=result)], SLO)
    assert (judged.offered, judged.served, judged.attained, judged.attainment) == (2, 1, 1, 0.5)


def test_counts_add_up_to_what_was_offered() -> None:
    outcomes = [served(), *[missed(result=name) for name in ("refused", "failed", "cut", "cancelled")]]
    judged = score(outcomes, SLO)
    total = judged.served + judged.refused + judged.failed + judged.cut + judged.cancelled
    assert total == judged.offered == 5


def test_nothing_offered_has_no_attainment() -> None:
    assert score([], SLO).attainment is None
    assert recent_attainment([], SLO, 0.0) is None


def test_recent_attainment_counts_what_ended_since() -> None:
    outcomes = [missed(1.0), served(10.0), missed(11.0)]
    assert recent_attainment(outcomes, SLO, 5.0) == 0.5


def test_windows_hold_what_was_sent_in_them() -> None:
    outcomes = [served(0.0), missed(4.9), served(5.0), served(16.0), served(20.5)]
    assert windows(outcomes, SLO, 20.0) == [0.5, 1.0, None, 1.0]
    assert windows([], SLO, 4.0) == [None]


def test_time_to_adapt_is_the_first_window_that_is_back() -> None:
    outcomes = [served(float(t)) for t in range(30)]
    outcomes += [missed(float(t)) for t in range(10, 16)]
    assert time_to_adapt(outcomes, SLO, turn_s=10.0, until_s=30.0) == Adaptation(True, 5.5)
    assert time_to_adapt(outcomes, SLO, turn_s=10.0, until_s=18.0) == Adaptation(True, None)
    assert time_to_adapt(outcomes, SLO, turn_s=16.0, until_s=30.0) == Adaptation(False, None)
    assert time_to_adapt([], SLO, turn_s=0.0, until_s=30.0) == Adaptation(False, None)


def test_a_fall_that_comes_late_is_waited_for() -> None:
    outcomes = [served(float(t)) for t in range(40)] + [missed(float(t)) for t in range(20, 23)]
    # good at the turn and below from the window of 15.5 s on, which holds the first miss
    assert time_to_adapt(outcomes, SLO, turn_s=10.0, until_s=40.0) == Adaptation(True, 12.5)


def test_windows_without_requests_say_nothing() -> None:
    outcomes = [missed(11.0), served(30.0)]
    assert time_to_adapt(outcomes, SLO, turn_s=10.0, until_s=40.0) == Adaptation(True, 15.5)


def test_a_schedule_follows_its_phases_and_its_seed() -> None:
    phases = [Phase("long", 50, 4.0, 1000, 10), Phase("short", 50, 8.0, 50, 100)]
    planned = poisson(phases, seed=7)
    assert planned == poisson(phases, seed=7)
    assert planned != poisson(phases, seed=8)
    assert [item.t_s for item in planned] == sorted(item.t_s for item in planned)
    for item in planned:
        assert item.kind == ("long" if item.t_s < 50 else "short")
        mean = 1000 if item.kind == "long" else 50
        assert 0.8 * mean <= item.prompt_tokens <= 1.2 * mean
    counts = [sum(item.kind == kind for item in planned) for kind in ("long", "short")]
    assert 120 < counts[0] < 290  # 200 expected
    assert 280 < counts[1] < 540  # 400 expected
