"""Benchmark points: what load is measured, for how long, and what makes the figures count."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from narwhal.documents import Document, Model
from narwhal.fleet.model.sites import Slo
from narwhal.fleet.model.values import Name, PositiveSeconds, Seconds, Text

Tokens = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
MixText = Annotated[
    str,
    StringConstraints(
        pattern=r"^((turning|sin|bursty):(code|conv|reas)(,(code|conv|reas))+:[0-9]+([.][0-9]+)?"
        r"|steady:(code|conv|reas)(,(code|conv|reas))*)$"
    ),
]
Share = Annotated[float, Field(ge=0, le=1)]


class RateTraffic(Model):
    """Requests of one kind at a rate."""

    kind: Literal["rate"]
    """Requests of one kind at a rate."""
    rate_rps: Positive = Field(examples=[4.0])
    """Mean arrivals per second."""
    arrivals: Literal["poisson", "gamma", "constant"] = "poisson"
    """How the gaps between arrivals are drawn: exponential, gamma, or all alike."""
    cv: Positive = 2.0
    """For gamma arrivals: standard deviation of the gaps over their mean; 1 is Poisson, more is burstier."""
    prompt_tokens: Tokens = Field(examples=[500])
    """Mean length of a prompt, in tokens."""
    output_tokens: Tokens = Field(examples=[100])
    """Mean length of an answer, in tokens."""
    spread: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Lengths are uniform within this share around their mean."""


class TraceTraffic(Model):
    """Requests of a recorded trace."""

    kind: Literal["trace"]
    """Requests of a recorded trace."""
    path: Text = Field(examples=["azure_code_2023.csv"])
    """File of the trace; a relative path is meant from this file's folder.

    Azure LLM 2023, BurstGPT and ServeGen (CSV), Mooncake, ServeGen and AIPerf (JSON Lines), or a router's own
    `journal.jsonl`. The format is told from the content.
    """
    compress: Positive = 1.0
    """The trace runs so many times as fast."""
    rate_rps: Positive | None = None
    """Another mean rate with the same course over time: requests are kept, left out or copied by chance."""
    prompt_scale: Positive = 1.0
    """Factor on prompt lengths."""
    output_scale: Positive = 1.0
    """Factor on answer lengths."""
    max_prompt_tokens: Tokens | None = None
    """Longer prompts are cut to this many tokens; default: none is."""
    max_output_tokens: Tokens | None = None
    """Longer answers are cut to this many tokens; default: none is."""


class MixTraffic(Model):
    """A synthetic mix of traffic classes."""

    kind: Literal["mix"]
    """A synthetic mix of traffic classes."""
    mix: MixText = Field(examples=["turning:code,reas:60"])
    """As `narwhal simulate --mix` takes it: turning, sin, bursty or steady; classes; seconds of a phase."""
    rate_rps: Positive = Field(examples=[4.0])
    """Mean arrivals per second."""
    curves: str | None = None
    """Profile that weighs the classes against each other (a shipped name, or a path).

    Default: that of the fleet file's engines, else `demo`.
    """
    prompt_scale: Positive = 1.0
    """Factor on prompt lengths."""
    output_scale: Positive = 1.0
    """Factor on answer lengths."""
    max_prompt_tokens: Tokens | None = None
    """Longer prompts are cut to this many tokens; default: none is."""
    max_output_tokens: Tokens | None = None
    """Longer answers are cut to this many tokens; default: none is."""


Traffic = Annotated[RateTraffic | TraceTraffic | MixTraffic, Field(discriminator="kind")]


class SharedPrefix(Model):
    """A beginning that prompts have in common, as a system prompt is."""

    tokens: Tokens
    """Length of the prefix, in tokens; it is part of the prompt's length."""
    groups: Tokens = 1
    """Number of different prefixes; requests take them in turn."""


class Search(Model):
    """Where `narwhal bench --goodput` looks for the highest rate that holds."""

    low_rps: Positive
    """Lowest rate to try, per second."""
    high_rps: Positive
    """Highest rate to try, per second."""
    precision: Annotated[float, Field(gt=0, lt=1)] = 0.05
    """The search ends when the bounds are this close, as a share of the upper one."""


class Point(Model):
    """One measurement."""

    name: Name = Field(examples=["chat-4"])
    """Short name; the folder of its evidence is called after it."""
    traffic: Traffic
    """What is sent, and when."""
    warmup_s: Seconds = 10.0
    """Traffic before the measurement, in seconds; it is sent and recorded, and not scored."""
    duration_s: PositiveSeconds = 60.0
    """Traffic that is scored, in seconds."""
    drain_s: PositiveSeconds = 60.0
    """How long answers may take after the last request was sent, in seconds; what is not whole then is given up."""
    endpoint: Literal["completions", "chat"] = "completions"
    """What is asked: `/v1/completions` or `/v1/chat/completions`."""
    prompts: Literal["ids", "text"] = "ids"
    """Prompts as token ids, or as text of an exact length by the served tokenizer; chat takes text alone."""
    shared_prefix: SharedPrefix | None = None
    """A beginning that prompts share; default: no two prompts begin alike."""
    seed: int = 1
    """Seed of arrivals, lengths and prompts."""
    slo: Slo | None = None
    """Targets of this point; default: those of the benchmark, else the fleet's."""
    attainment: Share | None = Field(default=None, examples=[0.9])
    """Share of offered requests that must meet both targets for the point to pass; default: it is only measured."""
    search: Search | None = None
    """Bounds of `--goodput`; default: a quarter to four times the point's rate."""


class Validity(Model):
    """Limits beyond which figures do not count."""

    lag_p99_s: Positive = 0.02
    """A point is invalid when 1 % of its requests were sent later than planned by more than this, in seconds."""
    stolen_share: Share = 0.02
    """A point is invalid when the hypervisor kept more of the client machine's CPU time from it than this share."""
    waited_share: Share = 0.1
    """A point is invalid when the load generator was ready to run and had no core for more than this share of it."""
    stall_s: Positive = 0.25
    """A point is invalid when the load generator did not get to run for longer than this at a time, in seconds."""
    idle_wait_s: Seconds = 30.0
    """How long the fleet may take to become idle before a point, in seconds."""


class Points(Model):
    """Points in order, and what they have in common."""

    points: Annotated[list[Point], Field(min_length=1)]
    """The measurements, in order."""
    slo: Slo | None = None
    """Targets that requests are judged by; default: the fleet's."""
    validity: Validity = Field(default_factory=Validity)
    """What makes figures not count."""


class BenchmarkMetadata(Model):
    """What the benchmark is called."""

    name: Name = Field(examples=["evening"])
    """Short name; it stands in the evidence."""


class Benchmark(Points, Document):
    """Benchmark points in a file of their own."""

    kind: Literal["Benchmark"]
    """This is a benchmark."""
    metadata: BenchmarkMetadata
    """Its name."""
