"""`Control` in long stories: 10,000 events of a fleet in which everything fails, and what must hold all the while."""

import os

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from narwhal.control import Settings
from narwhal.fleet.model import TenantLimits
from tests.control.driving import CURVES
from tests.control.driving import settings as control_settings
from tests.property.shadow import Mix, Story

EVENTS = 10_000
EXAMPLES = int(os.environ.get("NARWHAL_PROPERTY_EXAMPLES", "0"))
"""Other stories each time, so many; 0: the same three."""
END_S = 120.0
"""Within so many seconds after all is mended every request must have ended."""

MIXES = st.builds(
    Mix,
    arrivals=st.sampled_from([0.5, 4.0, 12.0, 30.0]),
    longest=st.sampled_from([60, 800, 3000]),
    aborts=st.sampled_from([0.0, 0.05, 0.3]),
    mishaps=st.sampled_from([0.0, 0.01, 0.1]),
    troubles=st.sampled_from([0.05, 0.3, 1.0]),
    orders=st.sampled_from([0.0, 0.2, 1.0]),
    takeovers=st.sampled_from([0.0, 0.02, 0.2]),
)


@st.composite
def settings_of(draw: st.DrawFn) -> Settings:
    """Settings of a fleet file, with deadlines that are short enough to pass."""
    pick = draw
    return control_settings(
        serving={
            "admission": pick(st.sampled_from(["open", "predictive"])),
            "queue": {"max_requests": pick(st.sampled_from([5, 200])), "max_wait_s": 20.0},
            "deadlines": {
                "prefill_s": 6.0,
                "first_token_s": 4.0,
                "gap_s": pick(st.sampled_from([0.0, 3.0])),
                "request_s": pick(st.sampled_from([15.0, 3600.0])),
            },
            "retry_budget": {"reserve": pick(st.sampled_from([3, 1000]))},
            "continuation": {"enabled": pick(st.booleans())},
        },
        controller={
            "policy": pick(st.sampled_from(["reactive", "projection"])),
            "enabled": pick(st.sampled_from([True, True, True, False])),
            "advisory": pick(st.sampled_from([False, False, False, True])),
            "min_prefill": pick(st.sampled_from([0, 1, 1, 2, 3])),
            "min_decode": pick(st.sampled_from([0, 1, 1, 2])),
            "projection": {"overflow": pick(st.booleans())},
            "thresholds": {"flip_resident_guard": pick(st.sampled_from([0, 0, 5]))},
        },
        recovery={
            "degraded": pick(st.sampled_from(["aggregate", "refuse"])),
            "readmit_backoff_s": pick(st.sampled_from([0.5, 5.0])),
        },
        tenants=pick(st.sampled_from([(), TENANTS])),
    )


TENANTS = (
    TenantLimits(name="a", weight=3.0, max_concurrency=20),
    TenantLimits(name="b", weight=1.0, priority="batch"),
    TenantLimits(name="c", weight=0.5, tokens_per_minute=20_000),
)


@settings(
    max_examples=EXAMPLES or 3,
    derandomize=not EXAMPLES,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # a shorter story is another one: nothing to shrink
)
@given(
    seed=st.integers(0, 2**32),
    roles=st.text("pd", min_size=2, max_size=10),
    rules=settings_of(),
    mix=MIXES,
    measured=st.sampled_from([True, True, True, False]),
)
def test_a_long_story_keeps_every_promise(seed: int, roles: str, rules: Settings, mix: Mix, measured: bool) -> None:
    story = Story(seed, roles, rules, mix, curves=CURVES, measured=measured)
    story.run(EVENTS)
    story.end(END_S)


def test_a_story_has_everything_in_it() -> None:
    """Or the promises would be about nothing."""
    mix = Mix(troubles=0.5, orders=1.0, takeovers=0.1)
    story = Story(11, "ppddd", control_settings(controller={}), mix, curves=CURVES, measured=True)
    story.run(EVENTS)
    story.end(END_S)
    assert story.troubles.takeovers >= 2
    for kind in ("served", "Abort", "Refuse", "client left", "router died"):
        assert story.ended.get(kind), (kind, story.ended)
    for kind in ("MoveRole", "Resume", "StartWhole", "ejected", "readmitted", "draining", "drained", "pinned", "left"):
        assert story.seen.get(kind), (kind, story.seen)
