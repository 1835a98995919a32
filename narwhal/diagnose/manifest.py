"""`MANIFEST.json` of a diagnostic bundle: what was asked for, what came of it, what was taken out."""

from typing import Literal

from narwhal.documents import Document, Model


class BundledSource(Model):
    """One thing that was to be collected."""

    name: str
    """What it is: `state`, `metrics`, `log gpu-1/0`, …"""
    file: str | None
    """Where it stands in the archive; null: nothing was collected."""
    outcome: Literal["collected", "partial", "missing", "skipped"]
    """`partial`: cut off at its limit, or not all of it could be read; `skipped`: it was not asked for."""
    reason: str = ""
    """Why it is not whole."""
    bytes: int = 0
    """Size of the file."""
    sha256: str | None = None
    """Digest of the file."""
    redactions: dict[str, int]
    """What was taken out or replaced, by kind: `secret`, `text`, `host`, `ip`, `tenant`, `user`, `id`, …"""


class BundleLimits(Model):
    """Limits of each source."""

    seconds: float
    """Time, in seconds."""
    bytes: int
    """Size, in bytes; of a log or a journal the end is kept."""


class DiagnosticBundle(Document):
    """What is in a bundle of `narwhal bundle`, and what is not, with the reason."""

    kind: Literal["DiagnosticBundle"] = "DiagnosticBundle"
    made_at: str
    """UTC time, ISO 8601."""
    version: str
    """Of the `narwhal` that made it."""
    since_s: float
    """How far back logs and journal go, in seconds."""
    kept: list[Literal["names", "addresses", "messages"]]
    """What the operator asked to have left in; empty: nothing."""
    limits: BundleLimits
    complete: bool
    """Whether every source was collected whole, skipped ones left out."""
    sources: list[BundledSource]
