"""Fits: curves through samples, by least squares on the relative error, with no coefficient below zero.

Relative, because a target is missed by a share, and a sweep spans three powers of ten. With three unknowns at most the
non-negative solution is found exactly: the best one over all subsets of terms whose own solution is not negative.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Generic, TypeVar

from narwhal.fleet.profile import DecodeCurve, PrefillCurve, TransferCurve
from narwhal.profiling.samples import DecodeSample, PrefillSample, TransferSample

Row = tuple[float, ...]
S = TypeVar("S")
Curve = TypeVar("Curve")


class FitError(ValueError):
    """Samples that no curve can be drawn through; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Errors:
    """How far a curve is from its samples, as shares of the measured value."""

    mean: float
    largest: float
    leave_one_out: float
    """Mean error at the samples of each cell of the curve that is fitted to the other cells."""
    residuals: tuple[float, ...]
    """(predicted - measured) / measured, in the samples' order."""


@dataclass(frozen=True)
class Fit(Generic[Curve]):
    """A curve, and how good it is."""

    curve: Curve
    errors: Errors


def fit_prefill(samples: Sequence[PrefillSample]) -> Fit[PrefillCurve]:
    """`max(t_min, a + b·(n-k) + c·(n²-k²))` for prompts of n tokens, k of them cached. Raises `FitError`.

    The floor is a part of the fit: the median of the shortest prompts, up to the length that leaves the least error.
    """
    lengths = {sample.prompt_tokens - sample.cached_tokens for sample in samples}
    if len(lengths) < 3:
        raise FitError(f"prefill was measured at {len(lengths)} lengths, and a curve needs at least 3")

    def predict(curve: PrefillCurve, sample: PrefillSample) -> float:
        return prefill_s(curve, sample.prompt_tokens, sample.cached_tokens)

    return _fit(samples, _prefill_curve, predict, _seconds, lambda s: (s.prompt_tokens, s.cached_tokens))


def fit_decode(samples: Sequence[DecodeSample]) -> Fit[DecodeCurve]:
    """`d0 + d1·requests + d2·kv_tokens`. Raises `FitError`."""
    if len({sample.requests for sample in samples}) < 2 or len(samples) < 3:
        raise FitError("decode was measured at fewer than 2 batch sizes or 3 points")
    return _fit(samples, _decode_curve, interval_s, lambda s: s.interval_s, lambda s: (s.requests, s.prompt_tokens))


def fit_transfer(samples: Sequence[TransferSample], kv_bytes_per_token: int) -> Fit[TransferCurve]:
    """`t0 + bytes / bandwidth`. Raises `FitError`."""
    if len({sample.prompt_tokens for sample in samples}) < 2:
        raise FitError("handoffs were measured at fewer than 2 lengths")

    def curve(some: Sequence[TransferSample]) -> TransferCurve:
        rows = [(1.0, float(s.prompt_tokens * kv_bytes_per_token)) for s in some]
        t0_s, per_byte_s = _solve(rows, [s.seconds for s in some])
        # a transfer too quick to be seen beside its constant part: no slower than a tenth of it for the largest
        largest = max(row[1] for row in rows)
        return TransferCurve(t0_s=t0_s, bandwidth_bytes_per_s=1 / per_byte_s if per_byte_s else largest / (0.1 * t0_s))

    def predict(fitted: TransferCurve, sample: TransferSample) -> float:
        return fitted.t0_s + sample.prompt_tokens * kv_bytes_per_token / fitted.bandwidth_bytes_per_s

    return _fit(samples, curve, predict, _seconds, lambda s: s.prompt_tokens)


def prefill_s(curve: PrefillCurve, prompt_tokens: int, cached_tokens: int = 0) -> float:
    """Seconds that a curve gives for a prompt."""
    n, k = prompt_tokens, cached_tokens
    return max(curve.t_min_s, curve.a_s + curve.b_s_per_token * (n - k) + curve.c_s_per_token2 * (n * n - k * k))


def interval_s(curve: DecodeCurve, sample: DecodeSample) -> float:
    """Seconds between tokens that a curve gives for a batch."""
    return curve.d0_s + curve.d1_s * sample.requests + curve.d2_s * sample.kv_tokens


def _seconds(sample: PrefillSample | TransferSample) -> float:
    return sample.seconds


def _fit(
    samples: Sequence[S],
    curve_of: Callable[[Sequence[S]], Curve],
    predict: Callable[[Curve, S], float],
    measured: Callable[[S], float],
    cell_of: Callable[[S], object],
) -> Fit[Curve]:
    def residual(curve: Curve, sample: S) -> float:
        return predict(curve, sample) / measured(sample) - 1

    curve = curve_of(samples)
    residuals = tuple(residual(curve, sample) for sample in samples)
    out: list[float] = []
    for cell in dict.fromkeys(cell_of(sample) for sample in samples):
        rest = curve_of([sample for sample in samples if cell_of(sample) != cell])
        out += [abs(residual(rest, sample)) for sample in samples if cell_of(sample) == cell]
    sizes = [abs(value) for value in residuals]
    return Fit(curve, Errors(statistics.fmean(sizes), max(sizes), statistics.fmean(out), residuals))


def _prefill_curve(samples: Sequence[PrefillSample]) -> PrefillCurve:
    lengths = sorted({_computed(sample) for sample in samples})
    best: tuple[float, PrefillCurve] | None = None
    for floor in (0, *lengths[:-2]):
        curve = _prefill_above(samples, floor)
        error = sum((prefill_s(curve, s.prompt_tokens, s.cached_tokens) / s.seconds - 1) ** 2 for s in samples)
        if best is None or error < 0.9 * best[0]:  # a floor must earn its place
            best = (error, curve)
    assert best is not None
    return best[1]


def _computed(sample: PrefillSample) -> int:
    return sample.prompt_tokens - sample.cached_tokens


def _prefill_above(samples: Sequence[PrefillSample], floor: int) -> PrefillCurve:
    """The curve of the samples with more than `floor` tokens to compute, over the median of the others."""
    above = [sample for sample in samples if _computed(sample) > floor]
    below = [sample.seconds for sample in samples if _computed(sample) <= floor]
    rows = [(1.0, float(_computed(s)), float(s.prompt_tokens**2 - s.cached_tokens**2)) for s in above]
    a, b, c = _solve(rows, [s.seconds for s in above])
    if b <= 0:  # a flat curve: the document wants a slope, so give it one that nobody can see
        b = 1e-12
    return PrefillCurve(t_min_s=statistics.median(below) if below else 0.0, a_s=a, b_s_per_token=b, c_s_per_token2=c)


def _decode_curve(samples: Sequence[DecodeSample]) -> DecodeCurve:
    rows = [(1.0, float(s.requests), s.kv_tokens) for s in samples]
    d0, d1, d2 = _solve(rows, [s.interval_s for s in samples])
    return DecodeCurve(d0_s=d0 or 1e-9, d1_s=d1, d2_s=d2)


def _solve(rows: Sequence[Row], values: Sequence[float]) -> Row:
    """The non-negative coefficients with the least squared relative error; zero where a term is better left out."""
    size = len(rows[0])
    weighted = [tuple(term / value for term in row) for row, value in zip(rows, values, strict=True)]
    best: tuple[float, Row] | None = None
    for count in range(1, size + 1):
        for terms in combinations(range(size), count):
            found = _normal([tuple(row[term] for term in terms) for row in weighted])
            if found is None or min(found) < 0:
                continue
            full = [0.0] * size
            for term, coefficient in zip(terms, found, strict=True):
                full[term] = coefficient
            error = sum((sum(x * y for x, y in zip(row, full, strict=True)) - 1) ** 2 for row in weighted)
            if best is None or error < best[0] - 1e-15:
                best = (error, tuple(full))
    assert best is not None  # one term alone always has a solution, and it is positive
    return best[1]


def _normal(rows: Sequence[Row]) -> Row | None:
    """Least squares against 1 by the normal equations, columns scaled; None where they do not determine it."""
    size = len(rows[0])
    scale = [max(abs(row[i]) for row in rows) or 1.0 for i in range(size)]
    scaled = [[row[i] / scale[i] for i in range(size)] for row in rows]
    matrix = [
        [sum(row[i] * row[j] for row in scaled) for j in range(size)] + [sum(row[i] for row in scaled)]
        for i in range(size)
    ]
    for i in range(size):
        pivot = max(range(i, size), key=lambda k: abs(matrix[k][i]))
        if abs(matrix[pivot][i]) < 1e-12:
            return None
        matrix[i], matrix[pivot] = matrix[pivot], matrix[i]
        for k in range(size):
            if k != i:
                factor = matrix[k][i] / matrix[i][i]
                matrix[k] = [x - factor * y for x, y in zip(matrix[k], matrix[i], strict=True)]
    return tuple(matrix[i][size] / matrix[i][i] / scale[i] for i in range(size))
