"""All verbs, by importing the modules that declare them."""

from narwhal.cli import demo, dev, hold, migrate, move, schema, show, status, validate, version
from narwhal.cli.app import run_app

__all__ = ["migrate", "schema", "show", "validate", "demo", "dev", "hold", "move", "run_app", "status", "version"]
