"""How fast an engine is: sweeps over prefill, decode and handoffs, fits, and the store of measured profiles."""

from narwhal.profiling.build import Built, Drawn, Limits
from narwhal.profiling.client import EngineError
from narwhal.profiling.facts import EngineFacts, engine_facts, sharers
from narwhal.profiling.fit import FitError
from narwhal.profiling.fleet import Ask, has_profiles, profile_fleet
from narwhal.profiling.store import engine_profile, save_profile, stored_profile

__all__ = [
    "Ask",
    "Built",
    "Drawn",
    "EngineError",
    "EngineFacts",
    "FitError",
    "Limits",
    "engine_facts",
    "engine_profile",
    "has_profiles",
    "profile_fleet",
    "save_profile",
    "sharers",
    "stored_profile",
]
