"""All verbs, by importing the modules that declare them."""

from narwhal.cli import version
from narwhal.cli.app import run_app

__all__ = ["run_app", "version"]
