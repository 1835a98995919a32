"""One sequence on a simulated engine: what was asked, and how far it is."""

from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field
from enum import StrEnum

from narwhal.engine.simulated.forms import Form
from narwhal.engine.simulated.sampling import Model


class Phase(StrEnum):
    """Where a sequence stands."""

    waiting = "waiting"
    """In the queue."""
    fetching = "fetching"
    """Its blocks are held; KV from another engine is on its way."""
    running = "running"
    """In the batch."""
    ended = "ended"


@dataclass(frozen=True, slots=True)
class Source:
    """The KV that another engine keeps for a request: leg 1's `kv_transfer_params`."""

    engine_id: str
    host: str
    port: int
    request_id: str
    """Name of the request on that engine."""
    blocks: tuple[int, ...]
    """Ids of the blocks there, in order."""
    tokens: int
    """Tokens of KV in them."""
    cached_tokens: int | None = None
    """Of those, tokens that the other engine had cached; None: it did not say."""


@dataclass(slots=True)
class Sequence:
    """A prompt and its answer. What is asked stands first; the scheduler owns the rest."""

    id: str
    prompt: Tokens[int]
    max_tokens: int
    seed: int = 0
    """Part of what the answer depends on."""
    cache_salt: str = ""
    """Only sequences with the same salt share blocks."""
    natural_end: bool = False
    """The answer ends by itself, at a length that the prompt decides; else only `max_tokens` ends it."""
    begun_tokens: int = 0
    """Last tokens of the prompt that are the beginning of the answer: another engine broke off there."""
    stop_tokens: frozenset[int] = frozenset()
    min_tokens: int = 0
    form: Form | None = None
    """What the answer must look like; it ends when it does."""
    keep_kv: bool = False
    """Leg 1: keep the prompt's blocks for another engine."""
    source: Source | None = None
    """Leg 2: fetch the prompt's KV there. The scheduler clears it when the KV is here."""

    phase: Phase = Phase.waiting
    arrived_t: float = 0.0
    started_t: float | None = None
    """When it first got blocks."""
    blocks: list[int] = field(default_factory=list)
    contents: list[bytes] = field(default_factory=list)
    """What its blocks will hold when it computes them itself."""
    computed_tokens: int = 0
    """Tokens of prompt and answer whose KV is in its blocks."""
    cached_tokens: int = 0
    """Of those, tokens that were already there when it started."""
    fetched_tokens: int = 0
    """Of those, tokens that came from another engine."""
    given_tokens: int = 0
    """Tokens whose KV was not computed here and must not be written over: the whole prompt after a handoff."""
    output: list[int] = field(default_factory=list)
    model: Model | None = None
    """The model after the newest known token; None before the first is chosen."""
    natural_tokens: int = 0

    @property
    def known_tokens(self) -> int:
        """Tokens of prompt and answer."""
        return len(self.prompt) + len(self.output)

    @property
    def state(self) -> bytes:
        """State of the model that chose the newest token; empty before the first."""
        return self.model.state if self.model is not None else b""

    @property
    def prefilling(self) -> bool:
        """Whether more than the newest token is still to compute."""
        return self.known_tokens - self.computed_tokens > 1

    def tokens(self, start: int, end: int) -> list[int]:
        """Tokens of prompt and answer, from `start` up to `end`."""
        split = len(self.prompt)
        return [*self.prompt[start:end], *self.output[max(0, start - split) : max(0, end - split)]]
