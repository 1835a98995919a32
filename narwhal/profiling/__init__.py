"""How fast an engine is: sweeps over prefill, decode and handoffs, fits, and the store of measured profiles."""

from narwhal.profiling.build import Built, Drawn, Limits
from narwhal.profiling.client import Answer, Cause, EngineError, EngineUrl, ask
from narwhal.profiling.facts import EngineFacts, engine_facts, read_facts, sharers
from narwhal.profiling.fit import FitError
from narwhal.profiling.fleet import Ask, has_profiles, profile_fleet, sharing
from narwhal.profiling.reach import engine_urls
from narwhal.profiling.store import engine_profile, save_profile, stored_profile
from narwhal.profiling.sweep import directed_pairs, measure_decode

__all__ = [
    "Answer",
    "Ask",
    "Built",
    "Cause",
    "Drawn",
    "EngineError",
    "EngineFacts",
    "EngineUrl",
    "FitError",
    "Limits",
    "ask",
    "directed_pairs",
    "engine_facts",
    "engine_profile",
    "engine_urls",
    "has_profiles",
    "measure_decode",
    "profile_fleet",
    "read_facts",
    "save_profile",
    "sharers",
    "sharing",
    "stored_profile",
]
