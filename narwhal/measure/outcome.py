"""What became of one request, as its client saw it."""

from dataclasses import dataclass
from typing import Literal

from narwhal.measure.schedule import Planned

Result = Literal["running", "served", "refused", "failed", "cut", "cancelled"]
"""`served`: answered to the end. `refused`: 429 or 503 before it started. `failed`: any other end without a
token. `cut`: tokens came, the end did not. `cancelled`: this client gave up. `running`: none of them yet."""


@dataclass(slots=True)
class Outcome:
    """One request of a load. Times are seconds after the start of the load, on a monotonic clock."""

    planned: Planned
    sent_s: float
    """When the client began to send it; TTFT counts from here, connecting included."""
    result: Result = "running"
    status: int = 0
    """HTTP status; 0: no answer came."""
    first_token_s: float | None = None
    """When the first generated token arrived. A role chunk or an empty text is none."""
    last_token_s: float | None = None
    tokens: int = 0
    """Generated tokens, from `usage` where it came, else the number of chunks with text."""
    ended_s: float | None = None
    gap_s: float | None = None
    """Longest time between two reads that held tokens; None with fewer than two."""
    gap_at_s: float | None = None
    """When that longest time began."""
    prompt_tokens: int | None = None
    """Length of the prompt as `usage` tells it; None: it did not."""
    id: str = ""
    """Its `x-request-id`; empty: it was sent without."""
    error: str = ""
    """What went wrong, in a few words of the server or of the socket; empty: nothing."""

    @property
    def lag_s(self) -> float:
        """How much later than planned it was sent: the generator's own lateness."""
        return self.sent_s - self.planned.t_s

    @property
    def ttft_s(self) -> float | None:
        """Seconds from sending to the first token; None without one."""
        return None if self.first_token_s is None else self.first_token_s - self.sent_s

    @property
    def tpot_s(self) -> float | None:
        """Mean gap in seconds between the tokens after the first; None with fewer than two tokens."""
        if self.first_token_s is None or self.last_token_s is None or self.tokens < 2:
            return None
        return (self.last_token_s - self.first_token_s) / (self.tokens - 1)
