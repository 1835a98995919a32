"""The whole way on small fleets: who wins where the control study says so, the same again with the same seeds."""

import itertools

import pytest

from narwhal.advise.answer import answered
from narwhal.advise.case import Base, Case, sized
from narwhal.advise.document import Advice
from narwhal.advise.knobs import changes
from narwhal.advise.runs import Runner
from narwhal.advise.search import together
from narwhal.advise.study import Study
from narwhal.advise.swing import swing_of
from tests.advise.fleets import CURVES, base

NOBODY = {
    "fleet": None,
    "engines": 2,
    "traffic": "a mix",
    "rate_rps": 1.0,
    "profiles": ["8b-h100"],
    "own_profiles": False,
}


def silent(text: str) -> None:
    pass


def advice(about: Base, *, budget_s: float = 3600.0, stages: int = 2) -> Advice:
    """The first stages: what each arrangement holds, and how certain that is."""
    study = Study(Runner(about, budget_s), [1], 8, silent)
    study._change = silent_stage  # type: ignore[method-assign]
    if stages < 3:
        study._count = silent_stage  # type: ignore[method-assign]
    study.run()
    return answered(study, {**NOBODY, "slo": about.settings.slo}, swing_of(about), [])


def silent_stage() -> None:
    pass


def test_colocated_wins_where_a_handoff_takes_for_ever() -> None:
    slow = base(transfer_t0_s=120.0)
    found = advice(slow)
    assert (found.verdict, found.recommendation.partition(":")[0]) == ("colocate", "colocated")
    assert found.reason.startswith("Stay colocated")
    assert {row.name: row.held_rps for row in found.arrangements}["static:1p1d"] == 0


def test_a_split_wins_where_tokens_must_not_wait_for_prompts() -> None:
    """The study: at a TPOT of 15 ms and less, separate engines are ahead whatever a mixed step costs."""
    tight = base(mix="steady:code,reas", tpot_s=0.012)
    found = advice(tight)
    assert found.verdict == "disaggregate"
    assert found.ratio is not None
    assert found.ratio.low > 1
    assert found.recommendation.partition(":")[0] in ("static", "reactive", "projection")


def test_equal_seeds_give_equal_advice() -> None:
    once, again = (advice(base()) for _ in range(2))
    assert once == again


def test_a_faster_stream_of_requests_never_needs_fewer_engines() -> None:
    needed = []
    for load in (0.3, 0.6, 1.2):
        study = Study(Runner(base(load=load), 3600.0), [1], 16, silent)
        study._climb()
        study._count()
        needed.append([study.found.engines[kind][0] for kind in ("colocated", "static")])
    for before, after in itertools.pairwise(needed):
        for fewer, more in zip(before, after, strict=True):
            assert fewer is not None
            assert more is not None
            assert fewer[0] <= more[0]


def test_without_time_nobody_can_tell_and_what_is_missing_is_said() -> None:
    found = advice(base(), budget_s=0.0)
    assert found.verdict == "cannot_tell"
    assert found.recommendation == "colocated"
    assert "what each arrangement can hold" in found.left_out
    assert "--budget-s" in found.reason


def test_a_contest_with_slow_handoffs_turns_the_answer() -> None:
    """What the changes are for: the same fleet, with handoffs that take far too long."""
    study = Study(Runner(base(mix="steady:code,reas", tpot_s=0.012), 3600.0), [1], 8, silent)
    study._climb()
    now, then = together(study.runner, [study._contest(Case()), study._contest(Case(latency=3e3))], silent)
    assert now[0] == "disaggregate"
    assert then[0] == "colocate"


def test_a_fleet_of_another_size_has_engines_of_its_kind() -> None:
    for count in (1, 2, 5):
        engines = sized(base(), count)
        assert len({engine.id for engine in engines}) == count
        assert {engine.curves for engine in engines} == {CURVES}
        if count > 1:
            assert {engine.role for engine in engines} == {"prefill", "decode"}


def test_targets_that_an_empty_engine_misses_are_not_tried() -> None:
    tried = changes(base(tpot_s=0.012))  # an empty engine takes two thirds of that for a token
    assert min(change.factor for change in tried if change.knob == "tpot") == 2.0
    assert "TPOT ≥ 240 ms" in {change.words(base(tpot_s=0.012)) for change in tried}


@pytest.mark.parametrize(("mix", "turns"), [("steady:conv", False), ("turning:code,reas:60", True)])
def test_swing_says_whether_moving_roles_can_pay(mix: str, turns: bool) -> None:
    swing = swing_of(base(4, mix, seconds=240.0))
    assert (swing.engines > 1) == turns
    assert swing.bound == pytest.approx(1 + swing.share)
