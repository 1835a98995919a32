"""The `Advice` document: whether to disaggregate, how certain that is, and what would change it."""

from typing import Annotated, Literal

from pydantic import Field

from narwhal.advise.arms import Kind
from narwhal.advise.knobs import Knob
from narwhal.documents import Document, Model
from narwhal.fleet.model import Slo, Text

Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Verdict = Literal["disaggregate", "colocate", "cannot_tell"]


class Interval(Model):
    """A figure and its 95 % interval."""

    value: float
    """Of all runs."""
    low: float
    """Lower end."""
    high: float
    """Upper end."""


class EngineCount(Model):
    """Engines that hold the rate, over the seeds."""

    least: Count
    """With the kindest seed."""
    most: Count
    """With the least kind."""
    arrangement: Text
    """What held it with the most, such as `static:3p2d`."""


class Arrangement(Model):
    """One way to arrange the engines."""

    name: Text
    """As `narwhal simulate --policy` names it."""
    kind: Kind
    """Whole requests everywhere, a split that stands, or one that follows the traffic."""
    held_rps: float
    """Highest rate that was seen to hold with the first seed; 0: none."""
    failed_rps: float | None
    """Lowest rate that was seen not to; null: none was tried."""
    goodput_rps: Interval | None
    """Rate at which attainment falls through 90 %; null: it was not among the best of its kind."""
    attainment: Interval | None
    """Attainment at the rate that was asked about; null: not looked at. An interval of no width: one seed alone."""
    engines: EngineCount | None
    """Engines with which its kind holds the rate; null: not looked at, or not even the most did."""


class ChangeTried(Model):
    """One thing that was changed, and the answer then."""

    knob: Knob
    """What: targets, handoffs, lengths, or how prompts and streams share a step."""
    factor: float
    """Times what is there; 1 for `mixing`, which has none."""
    words: Text
    """What it comes to, such as `TPOT ≤ 25 ms`."""
    verdict: Verdict
    """The answer then, by one seed and with the same margin."""
    arrangement: Text
    """What wins then."""
    flips: bool
    """Whether that is another answer than the one given."""


class Certainty(Model):
    """What the answer stands on."""

    seeds: Count
    """Different draws of the traffic."""
    blocks: Count
    """Blocks of a run that were drawn from."""
    block_s: float
    """Length of a block, in seconds."""
    resamples: Count
    """Draws of blocks."""
    margin: Share
    """A difference below this share is within the simulator's own error: nobody can tell."""
    runs: Count
    """Simulated runs."""


class Swing(Model):
    """How far the traffic turns: what moving roles could win at most."""

    share: Share
    """Difference of the prefill share of the work between the 10th and the 90th percentile of 30 s windows."""
    engines: float
    """The same in engines of the fleet: below one, moves cannot pay."""
    bound: float
    """Most that moving roles can hold, as a multiple of the best split that stands."""


class Advice(Document):
    """Whether to disaggregate."""

    kind: Literal["Advice"]
    """This is advice."""
    fleet: Text | None
    """Name of the fleet; null: engines were named by profile and number."""
    engines: Count
    """Engines it has."""
    traffic: Text
    """Trace or mix."""
    rate_rps: float
    """Requests per second that were asked about."""
    slo: Slo
    """Targets."""
    profiles: list[Text]
    """Where the engines' curves are from, in words."""
    own_profiles: bool
    """Whether all of them were measured on the engines themselves."""
    verdict: Verdict
    """Separate prefill from decode, keep them together, or the difference is too small for these means."""
    reason: Text
    """The answer in a sentence."""
    recommendation: Text
    """Arrangement to run; colocated, the simpler one, where nobody can tell."""
    roles: Literal["moving", "static", "cannot_tell"]
    """Whether roles that follow the traffic beat the best split that stands."""
    ratio: Interval | None
    """Goodput of the best disaggregated arrangement over that of the best colocated one; null: not finished."""
    moving_ratio: Interval | None
    """Goodput of the best adaptive policy over that of the best split."""
    swing: Swing
    """How far the traffic turns."""
    arrangements: list[Arrangement]
    """All that were compared, the best of each kind first."""
    changes: list[ChangeTried]
    """What was changed, the nearest first."""
    nearest_flip: ChangeTried | None
    """The smallest change that gives another answer; null: none of them does."""
    certainty: Certainty
    """Seeds, blocks, runs and the margin."""
    left_out: list[Text]
    """What there was no time for."""
    caveats: list[Text]
    """What to know before trusting it."""
