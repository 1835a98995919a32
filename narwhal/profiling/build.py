"""From samples to a `Profile` document, and the picture that says why a fit is refused."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from narwhal.fleet import Profile
from narwhal.fleet.profile import FitQuality, Measured, PairTransfer, TransferCurve
from narwhal.profiling.facts import EngineFacts
from narwhal.profiling.fit import Errors, Fit, fit_decode, fit_prefill, fit_transfer
from narwhal.profiling.samples import DecodeSample, PrefillSample, Sample, TransferSample

Neighbours = Literal["none", "loaded", "idle"]


@dataclass(frozen=True, slots=True)
class Limits:
    """How far a curve may be from its samples, as shares; beyond that it is refused."""

    mean_error: float = 0.10
    left_out_error: float = 0.20


@dataclass(frozen=True, slots=True)
class Drawn:
    """One curve against its samples."""

    name: str
    labels: tuple[str, ...]
    measured_s: tuple[float, ...]
    errors: Errors

    def refused(self, limits: Limits) -> str | None:
        """Why the curve may not be used; None when it may."""
        errors = self.errors
        if errors.mean > limits.mean_error:
            return (
                f"the {self.name} curve is {errors.mean:.1%} from its samples on average; "
                f"{limits.mean_error:.0%} is allowed"
            )
        if errors.leave_one_out > limits.left_out_error:
            return (
                f"the {self.name} curve misses a sample that it was not fitted to by {errors.leave_one_out:.1%} on "
                f"average; {limits.left_out_error:.0%} is allowed"
            )
        return None

    def picture(self) -> str:
        """Each sample with its error as a bar: to the right where the curve is too slow, to the left too quick."""
        width = max(len(label) for label in self.labels)
        lines = [f"{self.name}: error of the curve at each sample (one mark: 2 %, at most 15 marks)"]
        for label, seconds, error in zip(self.labels, self.measured_s, self.errors.residuals, strict=True):
            marks = min(round(abs(error) / 0.02), 15)
            left, right = ("#" * marks, "") if error < 0 else ("", "#" * marks)
            lines.append(f"  {label:<{width}} {seconds * 1e3:>9.2f} ms {left:>15}|{right:<15} {error:+.1%}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Built:
    """A profile, and its curves against their samples."""

    profile: Profile
    drawn: tuple[Drawn, ...]
    outliers: dict[str, float]
    """Engines whose samples are more than a tenth from the common curves on average: mean of predicted/measured - 1."""


def build_profile(
    name: str,
    facts: Sequence[EngineFacts],
    samples: Sequence[Sample],
    prior: Profile,
    *,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    neighbours: Neighbours,
) -> Built:
    """The profile of engines of one contract. Raises `FitError` where a curve cannot be fitted at all.

    What cannot be measured (the KV bytes of a token and the transfer, where no handoff was made) is the prior's.
    """
    prefills = [sample for sample in samples if isinstance(sample, PrefillSample)]
    decodes = [sample for sample in samples if isinstance(sample, DecodeSample)]
    transfers = [sample for sample in samples if isinstance(sample, TransferSample)]
    first = facts[0]
    prefill, decode = fit_prefill(prefills), fit_decode(decodes)
    token_bytes = kv_bytes_per_token(transfers, first.block_tokens) or prior.kv_bytes_per_token
    transfer = fit_transfer(transfers, token_bytes) if transfers else None
    drawn = [
        _drawn("prefill", [f"{s.engine} {s.cell.removeprefix('prefill ')}" for s in prefills], prefills, prefill),
        _drawn("decode", [f"{s.engine} {s.cell.removeprefix('decode ')}" for s in decodes], decodes, decode),
    ]
    if transfer is not None:
        drawn.append(
            _drawn("transfer", [f"{s.producer} > {s.engine} {s.prompt_tokens}" for s in transfers], transfers, transfer)
        )
    profile = Profile(
        kind="Profile",
        name=name,
        source=f"measured by narwhal profile on {', '.join(f.engine for f in facts)}",
        prefill=prefill.curve,
        decode=decode.curve,
        transfer=transfer.curve if transfer else prior.transfer,
        kv_bytes_per_token=token_bytes,
        kv_capacity_tokens=min(f.kv_capacity_tokens for f in facts),
        block_tokens=first.block_tokens,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        contract=first.contract,
        measured=Measured(
            at=datetime.now(UTC).isoformat(timespec="seconds"),
            version=first.version,
            engines=[f.engine for f in facts],
            neighbours=neighbours,
            prefill=_quality(prefill, {"prompt_tokens": [s.prompt_tokens for s in prefills]}),
            decode=_quality(
                decode, {"requests": [s.requests for s in decodes], "kv_tokens": [s.kv_tokens for s in decodes]}
            ),
            transfer=_quality(transfer, {"prompt_tokens": [s.prompt_tokens for s in transfers]}) if transfer else None,
        ),
        pairs=_pairs(transfers, token_bytes),
    )
    return Built(profile, tuple(drawn), _outliers(drawn[:2], [prefills, decodes]))


def kv_bytes_per_token(transfers: Sequence[TransferSample], block_tokens: int) -> int | None:
    """KV bytes of a token by what NIXL moved, in whole blocks; None when nothing was counted."""
    counted = [
        sample.moved_bytes / (-(-sample.prompt_tokens // block_tokens) * block_tokens)
        for sample in transfers
        if sample.moved_bytes
    ]
    return round(max(counted)) if counted else None


def _pairs(transfers: Sequence[TransferSample], token_bytes: int) -> list[PairTransfer]:
    groups: dict[tuple[str, str], list[TransferSample]] = {}
    for sample in transfers:
        groups.setdefault((sample.producer, sample.engine), []).append(sample)
    pairs = []
    for (producer, consumer), some in groups.items():
        fit: Fit[TransferCurve] = fit_transfer(some, token_bytes)
        pairs.append(PairTransfer(producer=producer, consumer=consumer, transfer=fit.curve, error=fit.errors.mean))
    return pairs


def _drawn(name: str, labels: list[str], samples: Sequence[Sample], fit: Fit[Any]) -> Drawn:
    seconds = tuple(s.interval_s if isinstance(s, DecodeSample) else s.seconds for s in samples)
    return Drawn(name, tuple(labels), seconds, fit.errors)


def _quality(fit: Fit[Any], domain: dict[str, list[float]]) -> FitQuality:
    return FitQuality(
        samples=len(fit.errors.residuals),
        mean_error=fit.errors.mean,
        largest_error=fit.errors.largest,
        left_out_error=fit.errors.leave_one_out,
        domain={name: (min(values), max(values)) for name, values in domain.items()},
    )


def _outliers(drawn: Sequence[Drawn], samples: Sequence[Sequence[Sample]]) -> dict[str, float]:
    by_engine: dict[str, list[float]] = {}
    for curve, some in zip(drawn, samples, strict=True):
        for sample, error in zip(some, curve.errors.residuals, strict=True):
            by_engine.setdefault(sample.engine, []).append(error)
    means = {engine: sum(errors) / len(errors) for engine, errors in by_engine.items()}
    return {engine: mean for engine, mean in means.items() if abs(mean) > 0.1}
