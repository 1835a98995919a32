"""One request on its way through the simulated fleet, and what became of it."""

from enum import Enum

from narwhal.control.events import Leg


class Place(Enum):
    """Where a request is, as the simulator sees it."""

    ROUTER = "router"
    PREFILL = "prefill"
    HANDOFF = "handoff"
    """Leg 1 is done; its KV waits on the producer."""
    TRANSFER = "transfer"
    """Leg 2 was sent; its KV is not there yet."""
    DECODE = "decode"
    WHOLE = "whole"
    """Prefill of a request that stays on its engine."""
    OVER = "over"


class Request:
    """A request with its true output length, which only the simulator knows."""

    __slots__ = (
        "arrived_t", "awaits", "cached_tokens", "done_tokens", "engine", "finished_t", "first_t", "id", "leg",
        "need_tokens", "outcome", "output_tokens", "place", "produced", "producer", "producer_tokens",
        "prompt_tokens", "seen_iteration", "sent", "start_iteration", "total_tokens",
    )  # fmt: skip

    def __init__(self, id: int, arrived_t: float, prompt_tokens: int, output_tokens: int) -> None:
        self.id = id
        self.arrived_t = arrived_t
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        """Output still to come when its present attempt began."""
        self.total_tokens = output_tokens
        """Output over all attempts."""
        self.place = Place.ROUTER
        self.engine = ""
        """Engine that its present leg is on."""
        self.sent: Leg = "prefill"
        """That leg."""
        self.producer = ""
        """Engine that holds the KV of its leg 1."""
        self.producer_tokens = 0
        """KV held there."""
        self.done_tokens = 0
        """Prompt tokens already computed in the present prefill."""
        self.cached_tokens = 0
        """Prompt tokens whose KV is on its engine before the prefill begins."""
        self.need_tokens = 0
        """KV it takes on its present engine until it is a stream there."""
        self.produced = 0
        """Output tokens when it joined its batch."""
        self.start_iteration = 0
        """Its engine's iteration count when it joined the batch."""
        self.seen_iteration = 0
        """The same when its tokens were last reported."""
        self.leg = 0
        """Rises with each command about it; deadlines and transfers of an older one are void."""
        self.awaits = ""
        """The deadline that runs, by name."""
        self.first_t = -1.0
        self.finished_t = -1.0
        self.outcome = ""
        """`served`, `refused`, `failed`; empty while it is under way."""

    @property
    def left(self) -> int:
        """Output tokens still to come when it joined its batch."""
        return self.output_tokens - self.produced

    def end_iteration(self) -> int:
        """Its engine's iteration count at its last token."""
        return self.start_iteration + self.left

    def produced_at(self, iteration: int) -> int:
        """Output tokens at an iteration count of its engine."""
        return self.produced + iteration - self.start_iteration

    def restart(self) -> None:
        """Begin again; what was produced is part of the prompt from now on."""
        self.prompt_tokens += self.produced
        self.output_tokens -= self.produced
        self.produced = 0
        self.cached_tokens = 0

    @property
    def ttft_s(self) -> float:
        """Seconds from arrival to the first token."""
        return self.first_t - self.arrived_t

    @property
    def tpot_s(self) -> float:
        """Mean seconds between tokens after the first; 0 for a single token."""
        return (self.finished_t - self.first_t) / (self.total_tokens - 1) if self.total_tokens > 1 else 0.0
