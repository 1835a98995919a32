"""Which engine holds which role, and when that changes: policies, guards, floors."""

from typing import Annotated, Literal

from pydantic import Field

from narwhal.documents import Model
from narwhal.fleet.model.values import PositiveSeconds, Seconds


class Thresholds(Model):
    """Guards and load limits of role moves, whatever the policy."""

    cooldown_s: Seconds = 0.0
    """Least time between two decisions that move engines from prefill to decode, in seconds."""
    dwell_s: Seconds = 0.0
    """Least time that an engine stays in a role it was moved to, in seconds."""
    flip_resident_guard: Annotated[int, Field(ge=0)] = 0
    """Most resident streams of a decode engine that is moved; 0: no limit."""
    shrink: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Prefill load at or below which an engine may leave prefill while the evidence window is open."""
    expand: Annotated[float, Field(gt=0)] = 1.0
    """Load of a role above which one proposal is enough to move an engine to it."""


class Reactive(Model):
    """The `reactive` policy: adjacent splits, evidence windows, departures."""

    step_s: PositiveSeconds = 1.0
    """Time between two evaluations, in seconds."""
    window_s: PositiveSeconds = 30.0
    """Long demand horizon, in seconds."""
    evidence_span_s: PositiveSeconds = 4.0
    """Short demand horizon, and time after which the arrival-evidence window closes, in seconds."""
    evidence_max_span_s: PositiveSeconds = 10.0
    """Time after which the window closes under sparse traffic, in seconds."""
    evidence_min_arrivals: Annotated[int, Field(ge=1)] = 8
    """Arrivals that close the window after `evidence_span_s`."""
    demand_rise_tolerance: Annotated[float, Field(ge=0)] = 0.15
    """Share by which the short horizon may exceed the long one and still count as stable."""
    movement_margin: Annotated[float, Field(ge=0)] = 0.15
    """Improvement of the score that a move needs."""
    act_at: Annotated[float, Field(ge=0)] = 0.8
    """Score of the current split below which nothing moves: a fleet with room in both roles is not balanced."""
    confirmations: Annotated[int, Field(ge=1)] = 2
    """Equal proposals in a row that a move needs."""


class Projection(Model):
    """The `projection` policy: any split within k moves, scored from queues and occupancy."""

    step_s: PositiveSeconds = 1.0
    """Time between two evaluations, in seconds."""
    window_s: PositiveSeconds = 30.0
    """Longest demand window, in seconds."""
    short_window_s: PositiveSeconds = 3.0
    """Short demand window, in seconds."""
    horizon_s: PositiveSeconds = 5.0
    """How far a prefill backlog is projected, in seconds."""
    occupancy_target: Annotated[float, Field(gt=0, le=1)] = 0.70
    """Share of a decode engine's room that visible tokens may fill."""
    expand_at: Annotated[float, Field(ge=0)] = 0.7
    """Score of the current split from which engines may move to prefill."""
    shrink_at: Annotated[float, Field(ge=0)] = 0.9
    """Score of the current split from which engines may move to decode."""
    gain: Annotated[float, Field(ge=0)] = 0.15
    """Least improvement, as a share of the score."""
    gain_calm: Annotated[float, Field(ge=0)] = 0.2
    """Least improvement while the score is below 1."""
    reversal_s: Seconds = 8.0
    """A move against one younger than this needs twice the improvement, in seconds."""
    move_cost: Annotated[float, Field(ge=0)] = 0.02
    """Cost of each moved engine in the score."""
    min_arrivals: Annotated[int, Field(ge=1)] = 8
    """Arrivals in the long window below which nothing moves unless prompts wait."""
    overflow: bool = False
    """Whether a decode engine with room may take a prompt that prefill cannot serve in time."""


class Controller(Model):
    """Which engine holds which role, and when that changes."""

    enabled: bool = True
    """Whether roles move at all."""
    policy: Literal["reactive", "projection"] = "reactive"
    """How splits are scored and moves chosen."""
    advisory: bool = False
    """Record what would be done, and do nothing."""
    monitor_interval_s: PositiveSeconds = 1.0
    """Time between two passes of floor repair, in seconds."""
    min_prefill: Annotated[int, Field(ge=0)] = 1
    """Floor: least live prefill engines."""
    min_decode: Annotated[int, Field(ge=0)] = 1
    """Floor: least live decode engines."""
    thresholds: Thresholds = Field(default_factory=Thresholds)
    """Guards and load limits."""
    reactive: Reactive = Field(default_factory=Reactive)
    """Parameters of the `reactive` policy."""
    projection: Projection = Field(default_factory=Projection)
    """Parameters of the `projection` policy."""
