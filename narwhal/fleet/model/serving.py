"""What the running router does: admission, deadlines, profiles, journal."""

from typing import Annotated, Literal

from pydantic import Field

from narwhal.documents import Model
from narwhal.fleet.model.values import PositiveSeconds, Seconds, Text


class Queue(Model):
    """Prompts that wait in the router."""

    max_requests: Annotated[int, Field(ge=0)] = 1024
    """Most requests that wait; one more is refused."""
    max_wait_s: Seconds = 60.0
    """Longest wait for a prefill engine, in seconds; then the request is refused."""


class Deadlines(Model):
    """How long the router waits for an engine, in seconds; 0 switches a deadline off."""

    prefill_s: Seconds = 60.0
    """For the answer of leg 1."""
    first_token_s: Seconds = 30.0
    """From sending leg 2 to its first token."""
    gap_s: Seconds = 30.0
    """Between two tokens of a stream."""
    request_s: Seconds = 3600.0
    """For a whole request, from arrival to its last byte."""


class Budget(Model):
    """How many second tries a fleet that fails may be asked for."""

    share: Annotated[float, Field(ge=0, le=1)] = 0.2
    """Tries that each served request pays for."""
    reserve: Annotated[int, Field(ge=0)] = 1024
    """Tries that may gather, and that there are at the start: more than the engines that fail at a time may hold."""


class Continuation(Model):
    """Streams that go on on another engine when theirs fails after the first token."""

    enabled: bool = True
    """Ask engines for the ids of the tokens that they stream (events then carry `token_ids`), keep those that were
    delivered, about seven bytes each, and go on from them. A client may decline: `x-narwhal-continue: off`."""
    max_per_request: Annotated[int, Field(ge=0, le=10)] = 3
    """How often one stream may go on; a request that engines fail on is not tried on all of them."""
    max_bytes: Annotated[int, Field(ge=0)] = 1048576
    """Most bytes of ids, prompt and answer, that are kept for a stream; a longer one ends with its engine."""
    budget: Budget = Field(default_factory=Budget)
    """How many streams may go on."""


class Serving(Model):
    """How requests are admitted, placed and timed."""

    admission: Literal["predictive", "open"] = "predictive"
    """`predictive` refuses what would miss its TTFT target; `open` never refuses."""
    margin: Annotated[float, Field(ge=0)] = 0.0
    """A request is refused when its price exceeds TTFT x (1 + margin); above 0 it lets in what will be late."""
    prefill_in_flight: Annotated[int, Field(ge=1)] = 2
    """Prompts that an engine is given at a time; more only while they fit into one batch of tokens."""
    queue: Queue = Field(default_factory=Queue)
    """How many prompts may wait, and how long."""
    deadlines: Deadlines = Field(default_factory=Deadlines)
    """How long the router waits for an engine."""
    max_retries: Annotated[int, Field(ge=0, le=10)] = 2
    """Further engines that a request is sent to before its first byte, when one fails."""
    retry_budget: Budget = Field(default_factory=Budget)
    """How many requests may be sent to a further engine."""
    max_body_bytes: Annotated[int, Field(ge=1024)] = 33554432
    """Largest request body, in bytes."""
    max_buffered_bytes: Annotated[int, Field(ge=1024)] = 268435456
    """Most bytes of request bodies that the router holds at a time, from their arrival to the end of their answers, or
    the first token of a stream without `continuation`; beyond that a new body is refused."""
    max_header_bytes: Annotated[int, Field(ge=1024)] = 65536
    """Largest request head, in bytes."""
    continuation: Continuation = Field(default_factory=Continuation)
    """Which streams go on on another engine when theirs fails."""
    media_hosts: list[str] = Field(default_factory=list)
    """Hosts that a client's media URLs may name."""
    shutdown_s: Seconds = 30.0
    """How long running requests may finish after SIGTERM, in seconds."""
    drain_s: Seconds = 600.0
    """How long running requests may finish on an engine that a reload takes out of the fleet, in seconds."""


class Profiles(Model):
    """How fast the engines are."""

    path: str | None = None
    """Directory of measured profiles; a relative one is meant from the fleet file's own."""
    prior: str = "demo"
    """Profile that stands in until an engine has one: a shipped name, or a path."""


class Journal(Model):
    """One row for each request and decision, as JSON Lines."""

    path: str | None = None
    """Directory of the journal; default: beside the router's state."""
    max_bytes: Annotated[int, Field(ge=65536)] = 67108864
    """Size at which a file is closed and a new one begun, in bytes."""
    keep: Annotated[int, Field(ge=1)] = 8
    """Closed files that are kept."""


class Scraping(Model):
    """What the files of `narwhal observe` and gate G tell Prometheus; the router reads none of it."""

    interval_s: PositiveSeconds = 5.0
    """Time between two looks at routers and engines, and between two evaluations of the rules, in seconds."""
    token_file: Text | None = None
    """File with a token of scope `read` (`routers.admin.tokens`), where Prometheus finds it; default: none is sent."""
    ca_file: Text | None = None
    """Authority of the admin listener's certificate, PEM, where Prometheus finds it; default: the system's."""
    alertmanager: Text = "127.0.0.1:9093"
    """Host and port of the Alertmanager that alerts go to."""
    runbooks: Text = "runbooks.md"
    """What the links of alerts begin with: the URL of `docs/runbooks.md` as your people reach it; default: the copy
    beside the rules."""


class Observability(Model):
    """What is written down, and who scrapes it."""

    journal: Journal = Field(default_factory=Journal)
    """The journal."""
    prometheus: Scraping = Field(default_factory=Scraping)
    """How Prometheus reaches the routers, and what its alerts name."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least level of log lines."""
