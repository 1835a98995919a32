"""All verbs, by importing the modules that declare them."""

from narwhal.cli import (
    check,
    demo,
    dev,
    engine,
    hold,
    keys,
    launch,
    migrate,
    move,
    profile,
    reload,
    schema,
    show,
    simulate,
    status,
    validate,
    version,
)
from narwhal.cli.app import run_app

__all__ = [
    "check",
    "demo",
    "dev",
    "engine",
    "hold",
    "keys",
    "launch",
    "migrate",
    "move",
    "profile",
    "reload",
    "run_app",
    "schema",
    "show",
    "simulate",
    "status",
    "validate",
    "version",
]
