"""A profile as if it had been measured."""

from datetime import UTC, datetime, timedelta

from narwhal.fleet import Profile, load_profile
from narwhal.fleet.profile import FitQuality, Measured

NOW = datetime(2026, 11, 30, tzinfo=UTC)


def measured_profile(neighbours: str = "none", error: float = 0.02) -> Profile:
    """The demo curves, as if measured a day ago."""
    fit = FitQuality(samples=9, mean_error=error, largest_error=error, left_out_error=error, domain={})
    measured = Measured.model_validate(
        {
            "at": (NOW - timedelta(days=1)).isoformat(),
            "version": "0.32.0",
            "engines": ["a"],
            "neighbours": neighbours,
            "prefill": fit,
            "decode": fit,
        }
    )
    return load_profile("demo").model_copy(update={"measured": measured})
