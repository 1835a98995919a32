"""What is learned of engines without a profile: how well, within which bounds, and what is left out."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import astuple, replace

from narwhal.control.commands import Refuse, StartPrefill
from narwhal.control.curves import Curves
from narwhal.control.events import (
    EngineRevised,
    FirstToken,
    LegFailed,
    PrefillFinished,
    RequestArrived,
    RequestFinished,
)
from narwhal.control.learning import FACTOR, PRIOR_SAMPLES, Learned
from narwhal.control.meter import Meter
from tests.control.driving import CURVES, Driver, only

PRIOR = replace(CURVES, a_s=0.01, b_s=0.0002, c_s=1e-9, d0_s=0.02, d1_s=0.001, d2_s=1e-6, max_num_seqs=32)
SHARES = st.floats(0.05, 20.0)
CHANGES = st.floats(0.2, 5.0)
HOSTILE = st.one_of(st.floats(0, 1e300), st.sampled_from([0.0, -1.0, float("inf"), float("nan"), 5e-324]))


def true_curves(shares: tuple[float, ...]) -> Curves:
    """Curves whose coefficients are shares of the prior's."""
    a, b, c, d0, d1, d2 = shares
    return replace(
        PRIOR,
        a_s=PRIOR.a_s * a, b_s=PRIOR.b_s * b, c_s=PRIOR.c_s * c,
        d0_s=PRIOR.d0_s * d0, d1_s=PRIOR.d1_s * d1, d2_s=PRIOR.d2_s * d2,
    )  # fmt: skip


def feed(learned: Learned, true: Curves, samples: int, rng: random.Random, noise: float) -> None:
    """So many samples of each phase, off by `noise` (standard deviation, as a share)."""
    for _ in range(samples):
        n, m = rng.randint(20, 4000), rng.uniform(1, 30)
        kv = m * rng.uniform(50, 300)
        learned.prefilled(1, n, n * n, true.prefill_s(n) * max(rng.gauss(1, noise), 0.2))
        learned.decoded(m, kv, interval(true, m, kv) * max(rng.gauss(1, noise), 0.2))


def interval(curves: Curves, requests: float, kv_tokens: float) -> float:
    """The interval of a mean batch, which need not be whole."""
    return curves.d0_s + curves.d1_s * requests + curves.d2_s * kv_tokens


def errors(learned: Curves, true: Curves) -> list[float]:
    """Errors, as shares, where the samples were."""
    prefill = [learned.prefill_s(n) / true.prefill_s(n) - 1 for n in (100, 500, 1500, 4000)]
    decode = [interval(learned, m, m * k) / interval(true, m, m * k) - 1 for m in (2, 15, 30) for k in (80, 250)]
    return [abs(error) for error in prefill + decode]


@settings(max_examples=25, deadline=None)
@given(st.tuples(*[SHARES] * 6), st.integers(0, 10**6))
def test_a_curve_is_learned_from_noisy_samples(shares: tuple[float, ...], seed: int) -> None:
    true, learned = true_curves(shares), Learned(PRIOR)
    feed(learned, true, 200, random.Random(seed), 0.05)
    assert max(errors(learned.curves, true)) < 0.15


@settings(max_examples=15, deadline=None)
@given(st.tuples(*[CHANGES] * 6), st.tuples(*[CHANGES] * 6), st.integers(0, 10**6))
def test_a_curve_that_changes_is_followed(old: tuple[float, ...], new: tuple[float, ...], seed: int) -> None:
    learned, rng = Learned(PRIOR), random.Random(seed)
    feed(learned, true_curves(old), 200, rng, 0.03)
    feed(learned, true_curves(new), 400, rng, 0.03)
    assert max(errors(learned.curves, true_curves(new))) < 0.2


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 10**6), st.floats(0, 1e9), HOSTILE), max_size=60))
def test_no_coefficient_leaves_its_bounds_whatever_is_told(samples: list[tuple[int, float, float]]) -> None:
    learned = Learned(PRIOR)
    for tokens, batch, seconds in samples:
        learned.prefilled(1, tokens, tokens * tokens, seconds)
        learned.decoded(batch, batch * 100, seconds)
    n, whole_s = PRIOR.chunk_tokens, PRIOR.prefill_s(PRIOR.chunk_tokens)
    most = {"a_s": whole_s, "b_s": whole_s / n, "c_s": whole_s / n**2}
    m, kv = PRIOR.max_num_seqs, PRIOR.kv_capacity_tokens
    full_s = PRIOR.interval_s(m, kv)
    most |= {"d0_s": full_s, "d1_s": full_s / m, "d2_s": full_s / kv}
    for name, whole in most.items():
        found = getattr(learned.curves, name)
        assert getattr(PRIOR, name) / FACTOR * 0.999 <= found <= whole * FACTOR * 1.001, name  # NaN fails both


@pytest.mark.parametrize("tokens", [1, 700, 100_000])
def test_prompts_of_one_length_are_learned_for_that_length(tokens: int) -> None:
    learned = Learned(PRIOR)
    true_s = PRIOR.prefill_s(tokens) * 3
    for _ in range(2000):
        learned.prefilled(1, tokens, tokens * tokens, true_s)
        learned.decoded(4, 1000, 0.004)
    assert learned.curves.prefill_s(tokens) == pytest.approx(true_s, rel=0.02)
    assert learned.curves.interval_s(4, 1000) == pytest.approx(0.004, rel=0.02)
    assert all(math.isfinite(value) for value in astuple(learned.curves))


def test_one_wild_sample_moves_a_trusted_curve_little() -> None:
    learned = Learned(PRIOR)
    feed(learned, PRIOR, 100, random.Random(1), 0.02)
    learned.prefilled(1, 1000, 10**6, 500.0)
    assert learned.curves.prefill_s(1000) < 1.3 * PRIOR.prefill_s(1000)


def test_the_floor_falls_to_what_was_seen() -> None:
    learned = Learned(replace(PRIOR, t_min_s=0.05))
    for n in (10, 400, 900) * 10:
        learned.prefilled(1, n, n * n, 0.001 + n * 1e-5)
    assert learned.curves.prefill_s(10) == pytest.approx(0.0011, rel=0.1)


def test_prompts_that_share_steps_are_learned_as_one_sample() -> None:
    learned = Learned(PRIOR)
    meter = Meter(learned)
    for step in range(20):
        t = step * 1.0
        for number in range(4):  # four prompts of 100 tokens, answered within a millisecond
            told = meter.prefilled(t + 0.11 + number * 1e-4, t, 100, 3 - number)
            assert told == (number == 3)
    assert learned.prefill.samples == 20
    assert learned.curves.prefill_s(400) == pytest.approx(0.11, rel=0.05)


def test_an_engine_that_is_never_idle_is_learned_from_too() -> None:
    learned = Learned(PRIOR)
    meter = Meter(learned)
    for number in range(400):
        meter.prefilled((number + 1) * 0.11, number * 0.11, 500, 1)
    assert learned.prefill.samples == 100
    assert learned.curves.prefill_s(500) == pytest.approx(0.11, rel=0.05)


def test_a_prompt_beside_decodes_teaches_nothing() -> None:
    fleet = Driver("pd", measured=False)
    for number in range(30):
        fleet.arrive(number, 500, t=fleet.t + 10)
        fleet.engine("e0").streams += 1
        fleet.prefilled(number, fleet.t + 9)
        fleet.engine("e0").streams -= 1
    assert fleet.engine("e0").curves.prefill_s(500) == CURVES.prefill_s(500)


def test_a_prompt_that_failed_spoils_what_was_computed_with_it() -> None:
    fleet = Driver("ppd", measured=False, serving={"admission": "open", "max_retries": 0})
    for number in range(0, 60, 2):
        fleet.feed(EngineRevised(fleet.t, "e1", CURVES, True))
        fleet.arrive(number, 500, t=fleet.t + 10)
        fleet.arrive(number + 1, 500)
        for one in fleet.engine("e0").prefills, fleet.engine("e1").prefills:
            assert len(one) == 1
        fleet.feed(LegFailed(fleet.t + 1, number, "prefill", "e0", "overload"))
        fleet.feed(LegFailed(fleet.t, number + 1, "prefill", "e1", "overload"))
    assert fleet.engine("e0").curves == CURVES
    fleet.arrive(100, 500)
    fleet.prefilled(100, fleet.t + 0.7)
    assert fleet.engine("e0").curves.prefill_s(500) == pytest.approx(0.7, rel=0.1)  # an idle engine begins anew


def serve(fleet: Driver, number: int, prompt: int, output: int, true: Curves) -> None:
    """One request alone, as an engine with other curves serves it; streamed."""
    fleet.feed(RequestArrived(fleet.t, number, prompt, 1000))
    fleet.feed(PrefillFinished(fleet.t + true.prefill_s(prompt), number, prompt))
    first_t = fleet.t + true.transfer_s(prompt)
    fleet.feed(FirstToken(first_t, number))
    fleet.feed(RequestFinished(first_t + (output - 1) * true.interval_s(1, prompt), number, output, prompt))
    fleet.t += 1


def test_admission_is_open_until_both_phases_of_the_kind_are_known() -> None:
    true = replace(CURVES, b_s=CURVES.b_s / 10, d0_s=CURVES.d0_s / 2)
    fleet = Driver("ppd", serving={"admission": "predictive"}, measured=False)
    for number in range(PRIOR_SAMPLES):
        assert not fleet.pool.trusted
        assert not any(isinstance(c, Refuse) for c in fleet.arrive(1000 + number, 100_000))
        fleet.control.lifecycle.cancelled(RequestFinished(fleet.t, 1000 + number, 0))
        serve(fleet, number, 1000 + 100 * number, 100, true)
    learned = fleet.engine("e1").curves
    assert fleet.pool.trusted
    assert fleet.engine("e0").curves is learned  # one kind
    assert learned.prefill_s(1500) == pytest.approx(true.prefill_s(1500), rel=0.1)
    assert learned.interval_s(1, 1500) == pytest.approx(true.interval_s(1, 1500), rel=0.15)
    fleet.arrive(2000, 100)
    assert only(fleet.arrive(2001, 50_000), Refuse).code == "prompt"


def test_a_curve_that_was_learned_too_slow_is_corrected_by_one_request_at_a_time() -> None:
    fleet = Driver("pd", serving={"admission": "predictive"}, measured=False)
    for number in range(20):
        serve(fleet, number, 1000, 100, replace(CURVES, b_s=CURVES.b_s * 20))
    assert fleet.engine("e0").curves.prefill_s(1000) > 2.2  # nobody would be let in
    number = 100
    while True:
        only(fleet.arrive(number, 1000), StartPrefill)
        if not any(isinstance(command, Refuse) for command in fleet.arrive(5000 + number, 100)):
            break
        assert number < 300
        fleet.prefilled(number, fleet.t + 1.0)
        fleet.feed(FirstToken(fleet.t, number))
        fleet.feed(RequestFinished(fleet.t + 1.0, number, 60))
        fleet.t += 5
        number += 1
    assert number > 100  # it did refuse


def test_an_answer_that_does_not_stream_teaches_when_it_is_long() -> None:
    fleet = Driver("pd", measured=False)
    for number, tokens in enumerate([5] * 20 + [400] * PRIOR_SAMPLES):
        assert not fleet.engine("e1").knows_decode
        fleet.arrive(number, 100)
        fleet.prefilled(number, fleet.t + 0.1)
        fleet.feed(RequestFinished(fleet.t + tokens * 0.005, number, tokens))
    assert fleet.engine("e1").knows_decode
    assert fleet.engine("e1").curves.interval_s(1, 100) == pytest.approx(0.005, rel=0.05)


def test_a_profile_ends_learning_and_its_loss_goes_on_with_what_is_known() -> None:
    true = replace(CURVES, b_s=CURVES.b_s * 3)
    fleet = Driver("pd", measured=False)
    for number in range(20):
        serve(fleet, number, 1000, 100, true)
    learned = fleet.engine("e0").curves
    fleet.feed(EngineRevised(fleet.t, "e0", CURVES, True))
    assert (fleet.engine("e0").curves, fleet.engine("e0").meter) == (CURVES, None)
    fleet.feed(EngineRevised(fleet.t, "e0", CURVES, False))
    assert fleet.engine("e0").curves == learned
    assert fleet.engine("e0").knows_prefill
    fleet.feed(EngineRevised(fleet.t, "e0", CURVES, False, "prefill"))  # something else changed
    assert fleet.engine("e0").curves == learned
