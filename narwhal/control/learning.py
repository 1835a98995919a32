"""Learning how fast a kind of engine is from what it serves, where no profile was measured.

Recursive least squares with forgetting: the sums of the normal equations, Φ = λ·Φ + x·xᵀ and z = λ·z + x·y, are
carried from sample to sample (Haykin, Adaptive Filter Theory, 4th ed., chapter 9), with a forgetting factor that grows
from its start, λ = λ₀·λ + (1 - λ₀)·λ∞ (Ljung and Söderström, Theory and Practice of Recursive Identification, 1983).
Φ is kept instead of its inverse: so traffic of one kind alone blows nothing up, and the coefficients are the least
squares *under* their bounds, not the free ones cut off afterwards.
"""

import msgspec

from narwhal.control.curves import Curves

FACTOR = 100.0
"""No coefficient falls below the prior's by more than this, or carries alone more than this times the prior's whole."""
PRIOR_SAMPLES = 8
"""Samples of a phase after which what was learned of it is trusted (`3-control.md`, Curves)."""
MEMORY, MEMORY_AT_FIRST, MEMORY_GROWS = 0.98, 0.9, 0.95
"""Forgetting factor: where it ends (some 50 samples), where it starts (some 10), and how slowly it gets there."""
OUTLIER = 4.0
"""Once trusted, a sample counts as at most this many times what was predicted, and at least its inverse."""
ANCHOR = 1e-3
"""Weight of the prior, for what the samples leave open (prompts of one length do not tell slope from constant)."""
SWEEPS = 12
"""Passes over the coefficients for each sample; each begins where the one before ended."""

Terms = tuple[float, float, float]


class Estimate:
    """Three coefficients of a sum of terms, `θ·x`, in units in which the prior's whole at a reference point is 1."""

    __slots__ = ("memory", "samples", "sums", "targets", "theta")

    def __init__(self, prior: Terms) -> None:
        self.theta = list(prior)
        self.samples = 0
        self.memory = MEMORY_AT_FIRST
        self.sums = [0.0] * 6
        """Σ λ^age x·xᵀ, its upper triangle by rows: 00 01 02 11 12 22."""
        self.targets = [0.0] * 3
        """Σ λ^age x·y."""

    @property
    def trusted(self) -> bool:
        """Whether enough samples have corrected the prior."""
        return self.samples >= PRIOR_SAMPLES

    def take(self, prior: Terms, terms: Terms, value: float) -> None:
        """Learn that `terms` took `value`, in the units of `theta`. An error counts relative to what the prior says."""
        expected = sum(c * x for c, x in zip(prior, terms, strict=True))
        if not (expected > 0.0 and 0.0 < value < float("inf")):
            return
        now = sum(c * x for c, x in zip(self.theta, terms, strict=True))
        widest = OUTLIER if self.trusted else FACTOR
        value = min(max(value, now / widest), now * widest)
        x0, x1, x2 = (x / expected for x in terms)
        y, keep = value / expected, self.memory
        sums, targets = self.sums, self.targets
        for place, product in enumerate((x0 * x0, x0 * x1, x0 * x2, x1 * x1, x1 * x2, x2 * x2)):
            sums[place] = keep * sums[place] + product
        for place, x in enumerate((x0, x1, x2)):
            targets[place] = keep * targets[place] + x * y
        self.memory = MEMORY - MEMORY_GROWS * (MEMORY - keep)
        self.samples += 1
        self._solve(prior)

    def _solve(self, prior: Terms) -> None:
        """Least squares within the bounds, by coordinate descent: each coefficient in turn, the others held."""
        s00, s01, s02, s11, s12, s22 = self.sums
        rows = ((s00, s01, s02), (s01, s11, s12), (s02, s12, s22))
        theta, targets = self.theta, self.targets
        for _ in range(SWEEPS):
            for i in (0, 1, 2):
                row = rows[i]
                rest = row[0] * theta[0] + row[1] * theta[1] + row[2] * theta[2] - row[i] * theta[i]
                best = (targets[i] - rest + ANCHOR * prior[i]) / (row[i] + ANCHOR)
                least = prior[i] / FACTOR
                theta[i] = least if best < least else FACTOR if best > FACTOR else best


class Learned:
    """The speed of one kind of engine: the prior's, corrected by every sample of every engine of the kind."""

    __slots__ = ("curves", "decode", "prefill", "prior")

    def __init__(self, prior: Curves) -> None:
        self.prior = prior
        self.curves = prior
        """As learned so far."""
        self.prefill = Estimate(_in_units(_prefill(prior), _prefill_units(prior)))
        self.decode = Estimate(_in_units(_decode(prior), _decode_units(prior)))

    def prefilled(self, steps: int, tokens: int, squares: int, seconds: float) -> None:
        """Learn that so many steps computed prompts, given by the sums of their lengths and of the squares of these.

        The floor of a prefill only falls, to the least that was seen: above it, the constant part says the same.
        """
        prior, units = self.prior, _prefill_units(self.prior)
        terms = (steps * units[0], tokens * units[1], squares * units[2])
        self.prefill.take(_in_units(_prefill(prior), units), terms, seconds)
        a, b, c = (value * unit for value, unit in zip(self.prefill.theta, units, strict=True))
        floor = min(self.curves.t_min_s, max(seconds / steps, prior.t_min_s / FACTOR))
        self.curves = msgspec.structs.replace(self.curves, t_min_s=floor, a_s=a, b_s=b, c_s=c)

    def decoded(self, requests: float, kv_tokens: float, interval_s: float) -> None:
        """Learn from a stream whose mean interval was so long, in a batch of so many requests and so much KV, mean."""
        prior, units = self.prior, _decode_units(self.prior)
        terms = (units[0], requests * units[1], kv_tokens * units[2])
        self.decode.take(_in_units(_decode(prior), units), terms, interval_s)
        d0, d1, d2 = (value * unit for value, unit in zip(self.decode.theta, units, strict=True))
        self.curves = msgspec.structs.replace(self.curves, d0_s=d0, d1_s=d1, d2_s=d2)


def _prefill(curves: Curves) -> Terms:
    return curves.a_s, curves.b_s, curves.c_s


def _decode(curves: Curves) -> Terms:
    return curves.d0_s, curves.d1_s, curves.d2_s


def _prefill_units(prior: Curves) -> Terms:
    """The coefficients that would each carry alone what the prior says of a full step."""
    n = prior.chunk_tokens
    whole_s = max(prior.a_s + prior.b_s * n + prior.c_s * n * n, prior.t_min_s)
    return whole_s, whole_s / n, whole_s / (n * n)


def _decode_units(prior: Curves) -> Terms:
    """The coefficients that would each carry alone what the prior says of a full batch."""
    requests, kv_tokens = prior.max_num_seqs, prior.kv_capacity_tokens
    whole_s = prior.interval_s(requests, kv_tokens)
    return whole_s, whole_s / requests, whole_s / kv_tokens


def _in_units(values: Terms, units: Terms) -> Terms:
    return values[0] / units[0], values[1] / units[1], values[2] / units[2]
