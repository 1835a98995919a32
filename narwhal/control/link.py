"""A link: handoffs from one engine to another, and what was seen of them."""

REMEMBERED = 3
"""Canaries of which two must have failed before anything is condemned."""


class Link:
    """One directed pair. Plain figures; the rules are in `links`."""

    __slots__ = (
        "bytes", "canaries", "failed_t", "failures", "handoffs", "out", "reason", "seconds", "since_t", "timed",
        "tokens", "transport", "tried_s", "tried_t",
    )  # fmt: skip

    def __init__(self) -> None:
        self.handoffs = 0
        """Handoffs of requests that were answered."""
        self.tokens = 0
        """Tokens of their prompts."""
        self.timed = 0
        """Those that streamed: when their first token came is known."""
        self.seconds = 0.0
        """Sum of the times of these, from sending leg 2 to its first token."""
        self.failures = 0
        """Handoffs, probes and canaries that failed."""
        self.failed_t = float("-inf")
        """When the last one did."""
        self.out = False
        """Whether it carries no handoffs of requests now."""
        self.reason = ""
        """Why it is out."""
        self.since_t = float("-inf")
        """Since when it is out or in."""
        self.canaries: list[str] = []
        """Outcomes of the last canaries, the newest last."""
        self.tried_t = float("-inf")
        """When a probe or canary ended last."""
        self.tried_s = 0.0
        """How long leg 2 of it took to its first token."""
        self.bytes = 0
        """Bytes that probes and canaries were seen to move."""
        self.transport = ""
        """How KV moves, as the engines say it; empty: not told."""

    def restart(self) -> None:
        """One side is another process now: what was seen of the former one says nothing."""
        self.canaries = []
        self.failed_t = self.tried_t = float("-inf")
        self.transport = ""
