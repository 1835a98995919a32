"""Profiles of a dev fleet: a short sweep before the router serves, once for each contract."""

import asyncio
from collections.abc import Callable

from narwhal.dev.errors import DevError
from narwhal.dev.instance import Instance
from narwhal.fleet import Expanded, ProfileError
from narwhal.profiling import Ask, EngineError, FitError, has_profiles, profile_fleet, save_profile

Say = Callable[[str], None]


def ensure_profiled(instance: Instance, expanded: Expanded, say: Say) -> None:
    """Measure the running, idle engines unless each has a profile of its contract. Raises `DevError`.

    A fit that is far off is kept all the same: dev machines are busy ones, the router corrects what it was given, and
    `narwhal profile` says how far off it is.
    """
    folder = expanded.profiles
    try:
        if asyncio.run(has_profiles(expanded, folder)):
            return
        say("profiling the engines (a short sweep; narwhal profile does a thorough one)")
        for built in asyncio.run(profile_fleet(Ask(expanded, folder, short=True), say)):
            save_profile(folder, built.profile)
    except* (EngineError, FitError, ProfileError, OSError) as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise DevError(
            "profile", f"profiling failed: {error}", hint="narwhal dev up tries again", failed=True
        ) from None
