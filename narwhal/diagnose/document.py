"""The `Why` document: what `narwhal why` found, in words and in the numbers that they come from."""

from typing import Any, Literal

from pydantic import Field

from narwhal.documents import Document, Model

Verdict = Literal["now", "moved", "held", "advised", "not enough", "not chosen"]


class ScoredSplit(Model):
    """A split that a decision weighed."""

    split: str
    """Such as `3P1D`."""
    change: int
    """Prefill engines that it has more than the present one."""
    score: float
    """What the policy compares; lower is better."""
    gain: float
    """By how much it is better than the present split."""
    verdict: Verdict
    """What became of it. `not enough`: it is not better by what a move needs; `not chosen`: another direction was."""


class AskedGate(Model):
    """A rule or guard that a decision asked."""

    gate: str
    """Its name, as in the record."""
    engine: str
    """The engine it is about; empty: the whole fleet."""
    passed: bool
    value: float
    """What was measured."""
    limit: float
    """What it was compared with."""
    words: str


class Explained(Model):
    """A decision of the role controller, or several in a row that the same gates held."""

    decision: int
    """Its number; of several, the latest."""
    times: int = 1
    """How many it stands for."""
    at: str | None
    """UTC time; null where the journal does not tell when its router started."""
    ago_s: float
    """How long before now, or before the end of the journal, in seconds."""
    outcome: str
    moves: list[str]
    """Such as `gpu-1/0 decode → prefill`."""
    candidates: list[ScoredSplit]
    """The present split first."""
    gates: list[AskedGate]
    words: str
    """Why, in one sentence."""


class LifeStep(Model):
    """One thing that happened to a request."""

    at_s: float
    """Seconds since its arrival."""
    what: str
    """`arrived`, `priced`, `waits`, `prefill`, `prefilled`, `decode`, `whole`, `first_token`, `failed`, `late`,
    `resume`, `refused`, `ended`."""
    engine: str = ""
    words: str


class RequestLife(Model):
    """One request from its arrival to its end."""

    request: int
    id: str
    """Its `x-request-id`; empty where its row is not written yet."""
    outcome: str
    """Empty while it is not over."""
    price_s: float | None = None
    """Seconds to its first token as admission saw them; null: it was not priced, or the events are not there."""
    limit_s: float | None = None
    """Its TTFT target with the margin: what the price was compared with."""
    steps: list[LifeStep]
    complete: bool
    """Whether the steps come from every event that its router gave to control; else they are from its row alone."""


class WhyNot(Model):
    """Why an engine is not in another role."""

    target: Literal["prefill", "decode"]
    engine: str = ""
    """The engine that was asked about; empty: any."""
    decision: int
    """The evaluation that says so."""
    reasons: list[str]


class Why(Document):
    """What `narwhal why` found. Its lists are empty, or null, where it was asked for something else."""

    kind: Literal["Why"] = "Why"
    question: Literal["last", "since", "move", "request", "not"]
    source: Literal["router", "journal"]
    """Whom it was asked of."""
    now_t: float
    """Present time, or the end of the journal, on the clock that dates decisions, in seconds."""
    degraded: str = ""
    """What is reduced while one role has no engine; empty: nothing, or not known."""
    moves: list[dict[str, Any]] = Field(default_factory=list)
    """Decisions that moved engines or advised it, as in the journal, oldest first."""
    held: list[dict[str, Any]] = Field(default_factory=list)
    """Decisions that were held, as in the journal, oldest first."""
    explained: list[Explained] = Field(default_factory=list)
    """The same in words, oldest first."""
    changes: list[dict[str, Any]] = Field(default_factory=list)
    """Changes of engines and pairs, as in the journal, oldest first."""
    request: RequestLife | None = None
    why_not: WhyNot | None = None
