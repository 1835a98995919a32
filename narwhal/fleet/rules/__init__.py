"""The rules of a fleet file: each a small function with a stable id, all in one catalogue."""

from narwhal.fleet.rules import (
    benchmark,
    controller,
    document,
    engines,
    hosts,
    recovery,
    roles,
    routers,
    secrets,
    security,
    serving,
)
from narwhal.fleet.rules.rule import RULES, Hit, Rule, run_rules

__all__ = [
    "RULES",
    "Hit",
    "Rule",
    "benchmark",
    "controller",
    "document",
    "engines",
    "hosts",
    "recovery",
    "roles",
    "routers",
    "run_rules",
    "secrets",
    "security",
    "serving",
]
