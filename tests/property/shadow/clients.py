"""A request as its client and the router's shell see it."""

from dataclasses import dataclass, field

from narwhal.control.commands import AnyCommand


@dataclass(slots=True)
class Handoff:
    """KV that leg 1 left on its producer."""

    producer: str
    life: int
    made_t: float
    """On the control's clock."""
    used: bool = False


@dataclass(slots=True)
class Asked:
    """One request."""

    number: int
    tokens: int
    """Length of its answer."""
    command: AnyCommand | None = None
    """What runs for it, or is waited for."""
    since_t: float = 0.0
    """Since when, on the world's clock."""
    turn: int = 0
    """Rises with each command: what an earlier leg still says is not reported."""
    handoff: Handoff | None = None
    visible: bool = False
    """Whether the client has the first token."""
    produced: int = 0
    heard_t: float = 0.0
    """When the last token came, on the world's clock."""
    flowing: bool = False
    """Whether its engine streams to it now."""
    ended: str = ""
    """How it ended; empty: it has not."""
    failed: set[str] = field(default_factory=set)
    """Engines that failed it."""

    @property
    def engine(self) -> str:
        """The engine that a leg of it runs on; empty: none does."""
        return getattr(self.command, "engine", "")

    def reads_from(self, engine: str) -> bool:
        """Whether KV of that engine may still be read for it."""
        return self.handoff is not None and self.handoff.producer == engine
