"""Fits find the curve that made the samples, and say honestly how far they are from others."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narwhal.fleet.profile import DecodeCurve, PrefillCurve
from narwhal.profiling.fit import FitError, fit_decode, fit_prefill, fit_transfer, interval_s, prefill_s
from narwhal.profiling.samples import DecodeSample, PrefillSample, TransferSample

LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


def prefills(curve: PrefillCurve, lengths: tuple[int, ...] = LENGTHS, cached: float = 0.0) -> list[PrefillSample]:
    return [PrefillSample("e", n, int(n * cached), prefill_s(curve, n, int(n * cached)), 0.0, 5) for n in lengths]


def decodes(curve: DecodeCurve) -> list[DecodeSample]:
    bare = [DecodeSample("e", r, n, float(r * n), 1.0, 100) for r in (1, 4, 16, 64) for n in (128, 1024, 4096)]
    return [DecodeSample(s.engine, s.requests, s.prompt_tokens, s.kv_tokens, interval_s(curve, s), 100) for s in bare]


@settings(deadline=None, max_examples=30)
@given(
    a=st.floats(1e-4, 0.05),
    b=st.floats(1e-6, 1e-3),
    c=st.sampled_from([0.0, 1e-9, 1e-8]),
    floor=st.sampled_from([0.0, 1.5]),
)
def test_prefill_finds_its_curve(a: float, b: float, c: float, floor: float) -> None:
    true = PrefillCurve(t_min_s=floor * (a + b * 128), a_s=a, b_s_per_token=b, c_s_per_token2=c)
    fit = fit_prefill(prefills(true))
    assert fit.errors.mean < 0.02
    for n in (100, 700, 5000, 12000):
        assert math.isclose(prefill_s(fit.curve, n), prefill_s(true, n), rel_tol=0.25 if n == 100 else 0.05)


def test_the_h200s_curve_has_a_floor() -> None:
    """Medians measured on the H200 with an 8B model (shared/engines/h200-8b-curves.json, 2026-11-30)."""
    measured = {
        64: 0.02308, 128: 0.02269, 256: 0.02456, 512: 0.02926, 1024: 0.03493, 2048: 0.05759, 4096: 0.11151,
        8192: 0.23348, 12288: 0.37063, 15872: 0.50439,
    }  # fmt: skip
    fit = fit_prefill([PrefillSample("e", n, 0, seconds, 0.0, 5) for n, seconds in measured.items()])
    assert 0.02 < fit.curve.t_min_s < 0.03
    assert fit.errors.mean < 0.05
    assert fit.errors.leave_one_out < 0.13


def test_a_cached_prefix_is_part_of_the_same_curve() -> None:
    true = PrefillCurve(a_s=0.01, b_s_per_token=2e-5, c_s_per_token2=1e-9)
    fit = fit_prefill(prefills(true) + prefills(true, (4096, 8192), cached=0.5))
    assert fit.errors.largest < 1e-6


@settings(deadline=None, max_examples=30)
@given(d0=st.floats(1e-3, 0.05), d1=st.floats(0, 1e-3), d2=st.floats(0, 1e-6))
def test_decode_finds_its_curve(d0: float, d1: float, d2: float) -> None:
    true = DecodeCurve(d0_s=d0, d1_s=d1, d2_s=d2)
    fit = fit_decode(decodes(true))
    assert fit.errors.largest < 1e-3
    assert fit.errors.leave_one_out < 1e-2


def test_no_coefficient_is_negative() -> None:
    falling = [PrefillSample("e", n, 0, 1.0 / n, 0.0, 5) for n in LENGTHS]
    curve = fit_prefill(falling).curve
    assert min(curve.a_s, curve.b_s_per_token, curve.c_s_per_token2) >= 0
    assert fit_prefill(falling).errors.mean > 0.3  # and the error says that it is no such curve


def test_leave_one_out_is_larger_where_one_sample_carries_the_curve() -> None:
    samples = prefills(PrefillCurve(a_s=0.01, b_s_per_token=2e-5), (64, 128, 256, 512))
    odd = [*samples, PrefillSample("e", 16384, 0, 1.0, 0.0, 5)]
    errors = fit_prefill(odd).errors
    assert errors.leave_one_out > errors.mean


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(FitError, match="2 lengths"):
        fit_prefill(prefills(PrefillCurve(a_s=0.01, b_s_per_token=1e-5), (64, 128)))
    with pytest.raises(FitError, match="batch sizes"):
        fit_decode(decodes(DecodeCurve(d0_s=0.01, d1_s=0, d2_s=0))[:3])
    with pytest.raises(FitError, match="2 lengths"):
        fit_transfer([TransferSample("d", "p", 64, 0.01, None, 3)], 1000)


def test_transfer_finds_bandwidth_and_constant() -> None:
    samples = [TransferSample("d", "p", n, 0.002 + n * 1000 / 1e9, n * 1000, 3) for n in (64, 1024, 8192)]
    curve = fit_transfer(samples, 1000).curve
    assert math.isclose(curve.t0_s, 0.002, rel_tol=1e-3)
    assert math.isclose(curve.bandwidth_bytes_per_s, 1e9, rel_tol=1e-3)


def test_a_transfer_too_quick_to_see_has_a_finite_bandwidth() -> None:
    curve = fit_transfer([TransferSample("d", "p", n, 0.002, None, 3) for n in (64, 8192)], 1000).curve
    assert 0 < curve.bandwidth_bytes_per_s < math.inf
