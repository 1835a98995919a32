"""The `Profile` document: how fast an engine is. Measured by `narwhal profile`, or shipped as a reference.

Prefill takes `max(t_min_s, a_s + b·n + c·n²)` seconds for n tokens; a decode interval takes
`d0_s + d1_s·requests + d2_s·kv_tokens` seconds; a handoff takes `t0_s + bytes / bandwidth` seconds.
"""

from typing import Annotated, Literal

from pydantic import Field

from narwhal.documents import Document, Model

NonNegative = Annotated[float, Field(ge=0)]


class PrefillCurve(Model):
    """Seconds to prefill n tokens alone: `max(t_min_s, a_s + b_s_per_token·n + c_s_per_token2·n²)`."""

    t_min_s: NonNegative = 0.0
    """Least time, in seconds."""
    a_s: NonNegative
    """Constant part, in seconds."""
    b_s_per_token: Annotated[float, Field(gt=0)]
    """Linear part, in seconds per token."""
    c_s_per_token2: NonNegative = 0.0
    """Quadratic part (attention), in seconds per token squared."""


class DecodeCurve(Model):
    """Seconds between tokens: `d0_s + d1_s·requests + d2_s·kv_tokens`."""

    d0_s: Annotated[float, Field(gt=0)]
    """Interval of an empty batch, in seconds."""
    d1_s: NonNegative
    """Increase for each request in the batch, in seconds."""
    d2_s: NonNegative
    """Increase for each token of KV in the batch, in seconds."""


class TransferCurve(Model):
    """Seconds to hand KV over: `t0_s + bytes / bandwidth_bytes_per_s`."""

    t0_s: NonNegative = 0.005
    """Constant part, in seconds."""
    bandwidth_bytes_per_s: Annotated[float, Field(gt=0)] = 25e9
    """Bandwidth, in bytes per second."""


class PairTransfer(Model):
    """Time of a handoff from one engine to another."""

    producer: str
    """Engine of the prefill leg."""
    consumer: str
    """Engine of the decode leg."""
    transfer: TransferCurve
    """Its curve."""
    error: NonNegative
    """Mean error over its samples, as a share of the measured time."""


class FitQuality(Model):
    """How far a curve is from what was measured, as shares of the measured value, and where it was measured."""

    samples: Annotated[int, Field(ge=1)]
    """Cells that were measured, over all engines."""
    mean_error: NonNegative
    """Mean error in sample."""
    largest_error: NonNegative
    """Largest error in sample."""
    left_out_error: NonNegative
    """Mean error at each sample of the curve fitted to the others."""
    domain: dict[str, tuple[float, float]]
    """Least and largest value of each variable: outside it the curve is a guess."""


class Measured(Model):
    """Where and when the curves were measured."""

    at: str
    """UTC time of the end of the sweep, ISO 8601."""
    version: str
    """Version of the engines."""
    engines: Annotated[list[str], Field(min_length=1)]
    """Engines whose samples are in the curves."""
    neighbours: Literal["none", "loaded", "idle"]
    """Whether engines that share a card were busy meanwhile; `none`: they share with nobody."""
    prefill: FitQuality
    """Of the prefill curve."""
    decode: FitQuality
    """Of the decode curve."""
    transfer: FitQuality | None = None
    """Of the transfer curve over all pairs; None when no handoff was measured."""


class Profile(Document):
    """Curves and limits of one kind of engine."""

    kind: Literal["Profile"]
    """This is a profile."""
    name: str
    """Name, as `--profile` and `--curves` take it."""
    source: str
    """Where the figures come from: the measurement, or the publication."""
    prefill: PrefillCurve
    """Time of a prefill."""
    decode: DecodeCurve
    """Time between tokens."""
    transfer: TransferCurve = Field(default_factory=TransferCurve)
    """Time of a handoff, for pairs that were not measured."""
    kv_bytes_per_token: Annotated[int, Field(ge=1)]
    """Size of the KV cache of one token, in bytes."""
    kv_capacity_tokens: Annotated[int, Field(ge=1)]
    """Tokens of KV that an engine holds."""
    block_tokens: Annotated[int, Field(ge=1)] = 16
    """Tokens of one KV block."""
    max_num_seqs: Annotated[int, Field(ge=1)]
    """Most requests in one batch."""
    max_num_batched_tokens: Annotated[int, Field(ge=1)] = 2048
    """Most tokens in one step."""
    contract: str | None = None
    """Contract fingerprint of the engines that these curves hold for; None for a reference."""
    measured: Measured | None = None
    """The measurement; None for a reference."""
    pairs: list[PairTransfer] = Field(default_factory=list)
    """Handoffs of each directed pair that was measured."""
