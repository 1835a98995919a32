"""NW073: when engines are on probation, and when they are out."""

from collections.abc import Iterator

from narwhal.fleet.facts import Facts
from narwhal.fleet.rules.rule import Hit, rule


@rule(
    "NW073",
    "slow engines ejected before probation",
    means="An engine is ejected for its pace only after probation, so the ratio that ejects must be the larger one.",
    fix="Raise `recovery.drift.eject_at`, or lower `recovery.drift.probation_at`.",
)
def drift_ratios_rise(facts: Facts) -> Iterator[Hit]:
    """`eject_at` exceeds `probation_at`."""
    drift = facts.fleet.recovery.drift
    if drift.eject_at <= drift.probation_at:
        text = f"eject_at is {drift.eject_at:g}, and probation_at is {drift.probation_at:g}"
        path = ("recovery", "drift", "eject_at")
        yield Hit(path, text, f"more than {drift.probation_at:g}", drift.eject_at)
