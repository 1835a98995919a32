"""The `Report` document: what runs came to, what could not be used and why, and how two of them compare."""

from typing import Annotated, Literal

from pydantic import Field

from narwhal.documents import Document, Model
from narwhal.fleet.model import Text

Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Source = Literal["narwhal", "aiperf", "guidellm", "vllm-bench", "simulate"]
Standing = Literal["counts", "missed", "invalid", "older", "unreconciled", "simulated"]
Verdict = Literal["better", "worse", "cannot tell"]


class Spread(Model):
    """How a time is spread over the requests that have it, in seconds."""

    count: Count | None
    """Requests that have it; null: the source does not say."""
    p50: float | None
    """Median; null: the source does not say."""
    p90: float | None
    """Nine of ten are at most this."""
    p99: float | None
    """99 of 100 are at most this."""


class Targets(Model):
    """What the requests were judged by."""

    ttft_s: float
    """Target for the first token, in seconds; that of prompts without a target of their own length."""
    tpot_s: float
    """Target for the mean gap after it, in seconds."""
    by_prompt: bool
    """Whether shorter prompts have TTFT targets of their own."""


class ReportPoint(Model):
    """One measurement."""

    point: Text
    """Name of the point; of a search, with the rate that was tried."""
    source: Source
    """Who measured."""
    standing: Standing
    """`counts`; `missed`: counts, and is below its declared attainment; `invalid`: its figures do not count; `older`:
    a newer measurement of the same point counts; `unreconciled`: another tool's own account, with no journal to check
    it by; `simulated`: nothing was measured."""
    wrong: list[str]
    """Why the figures do not count; empty: they do."""
    policy: str
    """Policy of the role controller; `held 2p2d` where its moves were on hold; empty: nobody said."""
    evidence: Text
    """Where it was read from, relative to what was named."""
    started_at: str
    """UTC; empty: the source does not say."""
    slo: Targets | None
    """Targets; null: it has none."""
    wanted: Share | None
    """Declared attainment; null: none."""
    asked_rps: float | None
    """Requests per second as declared, else as planned; null: the load was not open, or nobody says."""
    kept_rps: float | None
    """Requests that were sent in the scored time, per second of it."""
    offered: Count
    """Scored requests."""
    served: Count
    """Answered to the end."""
    refused: Count
    """429 or 503 before the first token; other tools count these among the failed."""
    failed: Count
    """Any other end without a token."""
    cut: Count
    """Tokens came, the end did not."""
    cancelled: Count
    """Given up by the client when the drain was over."""
    attainment: Share | None
    """Share of the offered requests that were served within both targets; null: no targets, or nothing offered."""
    goodput_rps: float | None
    """Requests within both targets per scored second."""
    ttft_s: Spread | None
    """Time to the first token."""
    tpot_s: Spread | None
    """Mean gap between the tokens after the first."""
    gap_s: Spread | None
    """Longest gap of each request."""
    moves: float | None
    """Role moves during the point; null: nobody says; simulated: mean over the seeds."""
    lag_p99_s: float | None
    """99 of 100 requests were sent at most so much later than planned."""


class Unusable(Model):
    """Something that is no part of the figures."""

    path: Text
    """Where it is, relative to what was named."""
    state: Literal["unreadable", "partial"]
    """`unreadable`: not all of it is there as it was written; `partial`: a measurement ended in the middle."""
    reason: str
    """What is wrong."""


class Found(Model):
    """A search for the highest rate that holds."""

    point: Text
    """Name of the point."""
    level: Share
    """Attainment that a rate had to reach."""
    goodput_rps: float | None
    """Highest rate that held; null: none did."""
    above_rps: float | None
    """Lowest rate that did not hold; null: all did."""


class ReportRun(Model):
    """What one argument named: a folder of evidence, or a result file."""

    name: Text
    """The end of its path, as long as it takes to tell runs apart."""
    points: list[ReportPoint]
    """Its measurements, by name and time."""
    searches: list[Found]
    """Searches for goodput."""
    unusable: list[Unusable]
    """What was found and could not be used."""


class Difference(Model):
    """One figure of one point in two runs."""

    figure: Text
    """`attainment`, or a quantile: `ttft_p50_s`, …"""
    here: float | None
    """In the run that is judged; null: it has none."""
    there: float | None
    """In the run that it is judged against."""
    difference: float | None
    """`here` less `there`."""
    low: float | None
    """Lower end of the interval of the difference; null: none could be drawn."""
    high: float | None
    """Upper end."""
    verdict: Verdict
    """`better` or `worse` where the interval leaves out zero."""
    why: str
    """Why nothing can be told; empty: the interval says it."""


class ComparedPoint(Model):
    """One point in two runs."""

    point: Text
    """Name of the point."""
    verdict: Verdict
    """Attainment's where it can tell; else that of the times, where those that can tell agree."""
    why: str
    """What the verdict stands on."""
    paired: bool
    """Whether both runs sent the same requests, so that each is compared with itself."""
    block: Count
    """Neighbouring requests that are drawn together; 0: nothing was drawn."""
    differences: list[Difference]
    """By figure."""


class Comparison(Model):
    """A run judged against another."""

    here: Text
    """The run that is judged."""
    there: Text
    """The run that it is judged against."""
    confidence: Share
    """Of all intervals of a point together."""
    resamples: Count
    """Resamples that the intervals stand on."""
    seed: int
    """Seed of the resamples."""
    points: list[ComparedPoint]
    """Points that both have."""
    only_here: list[str]
    """Points without a counterpart."""
    only_there: list[str]
    """Points of the other without a counterpart."""


class Part(Model):
    """A stretch of a request's life. Times are seconds after its client sent it."""

    name: Literal["queue", "prefill", "handoff", "decode", "whole"]
    """`queue`: until its first leg was sent, the way to the router included; `prefill`: leg 1 until its answer;
    `handoff`: the wait for a decode seat, KV transfer and first token; `decode`: the tokens after the first; `whole`:
    until the first token, where one engine did both."""
    from_s: float
    """Its begin."""
    to_s: float
    """Its end."""
    engine: str
    """Where; empty: on no engine."""


class Incident(Model):
    """Something that happened to an engine of the request meanwhile."""

    at_s: float
    """When."""
    engine: str
    """Which."""
    what: str
    """What, and why."""


class RequestStory(Model):
    """The life of one request."""

    id: Text
    """Its `x-request-id`."""
    run: Text
    """Name of the run."""
    point: Text
    """Name of the point."""
    result: str
    """What became of it."""
    met: bool
    """Whether it met its targets."""
    prompt_tokens: Count
    """Length of its prompt."""
    tokens: Count
    """Tokens that it got."""
    ttft_s: float | None
    """Time to the first token, as its client saw it."""
    tpot_s: float | None
    """Mean gap after it."""
    gap_s: float | None
    """Longest gap."""
    gap_at_s: float | None
    """When the longest gap began; null: not recorded."""
    parts: list[Part]
    """In order; empty: the journal does not have it."""
    incidents: list[Incident]
    """Changes of its engines while it ran."""
    retries: Count
    """Legs that were sent again."""
    continued: Count
    """How often it went on on another engine."""


class Report(Document):
    """What runs came to."""

    kind: Literal["Report"]
    """This is a report."""
    runs: list[ReportRun]
    """In the order they were named."""
    comparison: Comparison | None
    """The first run judged against another; null: not asked for."""
    requests: list[RequestStory]
    """Requests that were asked for."""
