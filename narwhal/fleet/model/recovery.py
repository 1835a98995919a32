"""What happens when an engine, a link or a router fails."""

from typing import Annotated, Literal

from pydantic import Field

from narwhal.documents import Model
from narwhal.fleet.model.values import PositiveSeconds, Seconds


class Drift(Model):
    """When an engine is too slow, by its decode interval over that of its profile."""

    probation_at: Annotated[float, Field(ge=1)] = 1.5
    """Ratio from which an engine is placed after all others, unless the fleet's median is as slow."""
    eject_at: Annotated[float, Field(ge=1)] = 3.0
    """Ratio from which it is ejected, unless the fleet's median is as slow."""
    span_s: PositiveSeconds = 5.0
    """How long it must stay above a ratio before that counts, in seconds."""


class Canary(Model):
    """Prompts that are handed over in the background, to see whether KV arrives as it left."""

    share: Annotated[float, Field(ge=0, le=0.2)] = 0.01
    """Most prefill time that they take, as a share of that of all prefill engines; 0: none are sent."""
    min_gap: Annotated[float, Field(ge=0)] = 0.1
    """Least difference of log-probability between the first and second choice of each token of a canary's answer; it is
    also at least four times the noise that is measured. Without such a prompt none are sent."""


class Restarts(Model):
    """How often an engine may start anew and still be readmitted by itself."""

    most: Annotated[int, Field(ge=1)] = 5
    """Starts within the window; with one more it stays out until enough of them lie further back."""
    window_s: PositiveSeconds = 600.0
    """The window, in seconds."""


class Recovery(Model):
    """What happens when an engine or a router fails."""

    degraded: Literal["aggregate", "refuse"] = "aggregate"
    """When a role has no engine left: serve both roles on the others, or refuse."""
    probe_interval_s: PositiveSeconds = 1.0
    """Time between two looks at an engine, in seconds."""
    probe_timeout_s: PositiveSeconds = 1.5
    """How long an engine may take to answer a look, in seconds."""
    eject_after: Annotated[int, Field(ge=1)] = 3
    """Looks in a row that must fail, or strikes that must count, to eject an engine; a refused connection ejects at
    once."""
    strike_half_life_s: PositiveSeconds = 30.0
    """Time after which a strike counts half, in seconds."""
    readmit_after: Annotated[int, Field(ge=1)] = 2
    """Healthy looks in a row before the readmission of an engine begins."""
    readmit_backoff_s: Seconds = 5.0
    """Least time from an ejection on soft evidence to readmission, in seconds; doubled for each in a row, at most
    300 s."""
    restarts: Restarts = Field(default_factory=Restarts)
    """The limit on restart loops."""
    drift: Drift = Field(default_factory=Drift)
    """Engines that become slow."""
    link_retry_s: PositiveSeconds = 30.0
    """Time between two tries of a pair that was taken out, in seconds; two in a row that succeed bring it back."""
    canary: Canary = Field(default_factory=Canary)
    """The background canary."""
    state_path: str | None = None
    """File in which the router keeps its state, for `narwhal-serve --resume`; a relative path is one in the router's
    state directory. null: nothing is kept."""
