"""What stays of a point: the `BenchEvidence` document, and the rows of the files beside it."""

from typing import Annotated, Literal

from pydantic import Field

from narwhal.documents import Document, Model
from narwhal.fleet.model import Digest, Point, Role, Slo, Text
from narwhal.measure.outcome import Result

DOCUMENT = "BenchEvidence.json"
SEARCH = "BenchSearch.json"
REQUESTS, JOURNAL, SAMPLES, METRICS = "requests.jsonl", "journal.jsonl", "samples.jsonl", "metrics.jsonl"
Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
CheckName = Literal["schedule", "idle", "router", "engines", "reconciled", "alone", "stolen"]


class Quantiles(Model):
    """How a figure is spread over requests, in seconds."""

    count: Count
    """Requests that have it."""
    mean: float
    """Mean."""
    p50: float
    """Median."""
    p90: float
    """Nine of ten are at most this."""
    p99: float
    """99 of 100 are at most this."""
    max: float
    """The largest."""


class BenchFigures(Model):
    """What the scored requests came to: those planned after the warm-up."""

    offered: Count
    """Requests; the sum of the five after it."""
    served: Count
    """Answered to the end."""
    refused: Count
    """429 or 503 before the first token."""
    failed: Count
    """Any other end without a token."""
    cut: Count
    """Tokens came, the end did not."""
    cancelled: Count
    """Given up by this client when the drain was over."""
    attained: Count
    """Served within both targets."""
    attainment: Share | None
    """`attained` over `offered`; null: nothing was offered."""
    offered_rps: float
    """Offered requests over the scored seconds."""
    goodput_rps: float
    """Requests that met both targets over the scored seconds."""
    output_tokens_per_s: float
    """Generated tokens of the scored requests over the scored seconds."""
    ttft_s: Quantiles | None
    """From sending, connecting included, to the first token; null: no token came."""
    tpot_s: Quantiles | None
    """Mean gap between the tokens after the first."""
    gap_s: Quantiles | None
    """Longest gap of each request."""
    by_kind: dict[str, Share]
    """Attainment of each traffic class."""


class ClientFacts(Model):
    """How well the load generator did, warm-up included."""

    sent: Count
    """Requests."""
    lag_p50_s: float
    """Median lateness of sending against the schedule."""
    lag_p99_s: float
    """99 of 100 requests were sent at most this late."""
    lag_max_s: float
    """The latest."""
    streams_max: Count
    """Most requests under way at a time."""
    tokens_per_s: float
    """Tokens received, over the time from the first request to the last answer."""
    cpu_share: float
    """CPU time of the load generator's process over the same time; 1 is one core."""
    cpu_us_per_token: float | None = None
    """CPU time of the load generator's process for each token, in microseconds; null: no token came."""
    waited_share: float | None = None
    """Share of the time of the load in which it was ready to run and had no core; null: the kernel does not tell."""
    stall_max_s: float | None = None
    """Longest time by which a beat, due every 50 ms, came late: it was stopped, starved or held up by its own work."""


class MachineFacts(Model):
    """The machine that the load came from."""

    cpu: str
    """Model of its processor."""
    cores: Count
    """Cores that the load generator may use."""
    memory_bytes: Count
    """Its memory."""
    kernel: str
    """Release of its kernel."""
    python: str
    """Version of Python."""
    versions: dict[str, str]
    """Narwhal, and what its load generator stands on."""
    load_1m: float
    """Load average over a minute, before the point."""
    stolen_share: Share | None
    """Share of its CPU time that the hypervisor gave to others during the point; null: it does not tell."""


class EngineSeen(Model):
    """An engine, before and after."""

    id: Text
    """`HOST/INDEX`."""
    role: Role
    """Role before."""
    role_after: Role | None
    """Role after; null: it is gone."""
    generation: str
    """Which life of its process it was, before."""
    generation_after: str | None
    """The same after; null: it is gone."""


class FleetSeen(Model):
    """What the router said of itself."""

    name: Text
    """Name of the fleet."""
    model: Text
    """Model that it serves."""
    policy: Text
    """Policy of its role controller."""
    held: bool
    """Whether the operator held role moves."""
    prefill: Count
    """Live prefill engines before."""
    decode: Count
    """Live decode engines before."""
    prefill_after: Count
    """Live prefill engines after."""
    decode_after: Count
    """Live decode engines after."""
    moves: Count
    """Role moves during the point."""
    engines: list[EngineSeen]
    """Its engines."""


class BenchInputs(Model):
    """What the figures hold for; a point is passed over while all of it is the same."""

    point: Digest
    """Of the point with its targets and limits, as they were in force."""
    trace: Digest | None
    """Of its trace; null: it has none."""
    fleet: Digest | None
    """Of what the fleet file says, points excepted; null: only a URL was named."""
    served: Digest | None
    """Of what the router says that it serves: fleet, model, policy and engines; null: it was not asked."""
    profiles: dict[str, Digest]
    """Of each engine's measured profile, by engine."""
    narwhal: Text
    """Version of Narwhal that measured."""


class BenchCheck(Model):
    """One condition for the figures to count."""

    name: CheckName
    """`schedule`: the load was sent in time; `idle`: the fleet had nothing to do before; `router` and `engines`: the
    same processes before and after; `reconciled`: client records and journal agree, request by request; `alone`: nobody
    else asked; `stolen`: the machine had its CPU for itself."""
    outcome: Literal["passed", "failed", "skipped"]
    """`skipped`: it could not be looked at."""
    message: str
    """What was seen."""


class BenchVerdict(Model):
    """Whether the figures count, and whether they are good."""

    valid: bool
    """No check failed."""
    passed: bool | None
    """Whether the declared attainment was reached; null: none is declared, or the figures do not count."""
    checks: list[BenchCheck]
    """Every condition."""


class BenchFile(Model):
    """A file beside the document."""

    sha256: Digest
    """Of its content."""
    rows: Count
    """Lines in it."""


class BenchEvidence(Document):
    """One point as it was measured."""

    kind: Literal["BenchEvidence"]
    """This is the evidence of a benchmark point."""
    benchmark: Text
    """Name of the benchmark: of its file, or of the fleet."""
    point: Point
    """The point as it was declared; of a search, with the rate that was tried."""
    slo: Slo
    """Targets that were in force."""
    started_at: Text
    """UTC."""
    ended_at: Text
    """UTC."""
    router_start_t: float | None
    """The router's clock when the load began: times of the journal less this are seconds of the load."""
    inputs: BenchInputs
    """What the figures hold for."""
    fleet: FleetSeen | None
    """What the router said; null: it was not asked."""
    machine: MachineFacts
    """Where the load came from."""
    client: ClientFacts
    """How well the load generator did."""
    figures: BenchFigures
    """What came of it."""
    verdict: BenchVerdict
    """Whether it counts."""
    files: dict[str, BenchFile]
    """Files beside this document, by name."""


class BenchTry(Model):
    """One rate of a search."""

    rate_rps: float
    """Offered rate, per second."""
    attainment: Share | None
    """What it came to."""
    valid: bool
    """Whether the figures count."""
    holds: bool
    """Whether attainment reached the level."""
    evidence: Text
    """Folder of its evidence, relative to this document's folder."""


class BenchSearch(Document):
    """The highest rate that holds, found by bisection."""

    kind: Literal["BenchSearch"]
    """This is a search for goodput."""
    benchmark: Text
    """Name of the benchmark."""
    point: Text
    """Name of the point."""
    level: Share
    """Attainment that a rate must reach."""
    ended_at: Text
    """UTC."""
    goodput_rps: float | None
    """Highest rate that held; null: not even the lowest did."""
    above_rps: float | None
    """Lowest rate that did not hold; null: even the highest did."""
    tries: list[BenchTry]
    """Every rate, in the order they were tried."""


class BenchRequest(Model):
    """One request as its client saw it: a line of `requests.jsonl`. Times are seconds after the load began."""

    id: Text
    """Its `x-request-id`, by which the journal names it too."""
    kind: str
    """Traffic class."""
    warmup: bool
    """Whether it is left out of the score."""
    planned_s: float
    """When it was to be sent."""
    sent_s: float
    """When it was."""
    prompt_tokens: Count
    """Tokens that its prompt was built to have."""
    prompt_tokens_told: Count | None
    """What the answer's usage says; null: none came."""
    max_tokens: Count
    """Tokens it asked for."""
    tokens: Count
    """Tokens it got."""
    result: Result
    """What became of it."""
    status: Count
    """HTTP status; 0: no answer came."""
    ttft_s: float | None
    """Time to the first token; null: none came."""
    tpot_s: float | None
    """Mean gap after it; null: fewer than two tokens came."""
    gap_s: float | None
    """Longest gap; null: fewer than two reads with tokens."""
    gap_at_s: float | None = None
    """When the longest gap began; null: there is none, or an older version measured."""
    ended_s: float | None
    """When it was over."""
    met: bool
    """Whether it was served within both targets."""
    error: str
    """What went wrong; empty: nothing."""


class EngineSample(Model):
    """An engine at one moment."""

    id: Text
    """`HOST/INDEX`."""
    role: Role
    """Role."""
    state: Text
    """Standing, as in `RouterState`."""
    residents: Count
    """Requests on it."""
    prefills: Count
    """Prompts that it is given."""
    kv_tokens: float
    """KV that they take."""
    occupancy: float | None
    """Share of what it can decode within the target."""


class BenchSample(Model):
    """The fleet at one moment: a line of `samples.jsonl`."""

    t_s: float
    """Seconds after the load began."""
    running: Count
    """Requests of this client under way."""
    prefill: Count
    """Live prefill engines."""
    decode: Count
    """Live decode engines."""
    load_prefill: float | None
    """Load of the prefill engines over their target; null: not evaluated yet."""
    load_decode: float | None
    """The same of the decode engines."""
    waiting: Count
    """Requests in the router's queue."""
    engines: list[EngineSample]
    """Its engines."""


class BenchScrape(Model):
    """Metrics of the router, or of an engine, at one moment: a line of `metrics.jsonl`."""

    t_s: float
    """Seconds after the load began."""
    engine: Text | None = None
    """`HOST/INDEX` whose metrics these are; null: the router's."""
    text: str
    """In Prometheus' text format."""
