"""What is true of the engines, whatever control believes: lives, whether they answer, which links carry KV."""

import random
from dataclasses import dataclass, field
from typing import Literal

from narwhal.control.events import Outcome

State = Literal["up", "dead", "hung"]
LOOK_S = 0.005
"""How long a look takes where the engine answers, or its port refuses."""


@dataclass(slots=True)
class ShadowEngine:
    """One engine."""

    name: str
    life: int = 1
    state: State = "up"
    fails: bool = False
    """Whether it answers every request with a 5xx, and every look as if it were well."""
    slow: float = 1.0
    """Its decode interval over the profile's."""
    contract: str = "c1"
    tokens: int = 0
    """Generated since its process started."""
    late: int = 0
    """Reads of KV that it had freed."""

    @property
    def generation(self) -> str:
        """The name of its process."""
        return f"{self.name}-life-{self.life}"

    def restart(self, contract: str) -> None:
        """Another process takes its place."""
        self.life += 1
        self.state, self.fails, self.slow, self.contract, self.tokens, self.late = "up", False, 1.0, contract, 0, 0


@dataclass(slots=True)
class ShadowFleet:
    """All engines and the links between them."""

    random: random.Random
    engines: dict[str, ShadowEngine] = field(default_factory=dict)
    cut: set[tuple[str, str]] = field(default_factory=set)
    """Pairs over which no KV comes."""
    wrong: set[tuple[str, str]] = field(default_factory=set)
    """Pairs over which it comes corrupt."""

    def mend(self) -> None:
        """Everything is well from now on."""
        self.cut.clear()
        self.wrong.clear()
        for engine in self.engines.values():
            engine.state, engine.fails, engine.slow = "up", False, 1.0

    def alone(self, name: str) -> Outcome | Literal["hangs"]:
        """What becomes of a prompt that an engine serves whole; `leg_1` where it fails."""
        engine = self.engines[name]
        if engine.state == "hung":
            return "hangs"
        return "leg_1" if engine.state == "dead" or engine.fails else "right"

    def handed(self, producer: str, life: int, consumer: str) -> Outcome | Literal["hangs"]:
        """What becomes of KV that a life of the producer has made, at the consumer."""
        source, target = self.engines.get(producer), self.engines[consumer]
        if target.state == "hung":
            return "hangs"
        if target.state == "dead" or target.fails or source is None:
            return "leg_2"
        if source.state == "hung" or (producer, consumer) in self.cut:
            return self.random.choice(("hangs", "leg_2"))  # both were seen on vLLM
        if source.state == "dead" or source.life != life:
            return "leg_2"
        return "wrong" if (producer, consumer) in self.wrong else "right"

    def tried(self, producer: str, consumer: str, *, compared: bool) -> Outcome | Literal["hangs"]:
        """What a probe or canary comes to."""
        if producer not in self.engines or consumer not in self.engines:
            return "untold"
        first = self.alone(producer)
        if producer == consumer or first != "right":
            return first
        second = self.handed(producer, self.engines[producer].life, consumer)
        return "right" if second == "wrong" and not compared else second
