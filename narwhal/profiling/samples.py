"""What a sweep measured: one record for each cell, kept as JSON lines so that a broken sweep goes on where it ended."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec


class PrefillSample(msgspec.Struct, frozen=True, tag="prefill", tag_field="sample"):
    """One prompt, alone on the engine."""

    engine: str
    prompt_tokens: int
    cached_tokens: int
    """Tokens at its start that the engine held in its prefix cache."""
    seconds: float
    """From sending the request to its first token: the median of `repeats`."""
    spread: float
    """(largest - least) / median over the repeats."""
    repeats: int

    @property
    def cell(self) -> str:
        """Which cell of the plan this is."""
        return f"prefill {self.prompt_tokens} cached {self.cached_tokens}"


class DecodeSample(msgspec.Struct, frozen=True, tag="decode", tag_field="sample"):
    """A batch that decodes, all its streams running."""

    engine: str
    requests: int
    prompt_tokens: int
    """Length of each prompt."""
    kv_tokens: float
    """Mean tokens of KV in the batch while the interval was measured."""
    interval_s: float
    """Mean seconds between two tokens of a stream."""
    tokens: int
    """Tokens that the interval was measured over, all streams together."""

    @property
    def cell(self) -> str:
        """Which cell of the plan this is."""
        return f"decode {self.requests} x {self.prompt_tokens}"


class TransferSample(msgspec.Struct, frozen=True, tag="transfer", tag_field="sample"):
    """A handoff between two idle engines."""

    engine: str
    """The consumer."""
    producer: str
    prompt_tokens: int
    seconds: float
    """From sending leg 2 to its first token, less the interval of the tokens after it: the median of `repeats`."""
    moved_bytes: int | None
    """What the consumer's NIXL counter rose by for each handoff; None where it has none."""
    repeats: int

    @property
    def cell(self) -> str:
        """Which cell of the plan this is."""
        return f"transfer {self.producer} {self.prompt_tokens}"


Sample = PrefillSample | DecodeSample | TransferSample


class _Line(msgspec.Struct):
    contract: str
    sample: Annotated[Sample, msgspec.Meta(description="the record")]


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Line).decode


class SampleFile:
    """The samples of one engine, appended one by one and synced, so that nothing measured is lost."""

    def __init__(self, path: Path, contract: str) -> None:
        self.path = path
        self.contract = contract
        """Samples of another contract are left alone."""

    def read(self) -> dict[str, Sample]:
        """The samples of this contract by cell; a torn last line is ignored, as are lines of another version."""
        samples: dict[str, Sample] = {}
        try:
            lines = self.path.read_bytes().splitlines()
        except FileNotFoundError:
            return samples
        for line in lines:
            try:
                parsed = _decode(line)
            except msgspec.DecodeError:
                continue
            if parsed.contract == self.contract:
                samples[parsed.sample.cell] = parsed.sample
        return samples

    def append(self, samples: Iterable[Sample]) -> None:
        """Add samples. Raises `OSError`."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            if file.tell() and not self.path.read_bytes().endswith(b"\n"):
                file.write(b"\n")  # a torn line of a sweep that was killed
            for sample in samples:
                file.write(_encode(_Line(self.contract, sample)) + b"\n")
            file.flush()
            os.fsync(file.fileno())
