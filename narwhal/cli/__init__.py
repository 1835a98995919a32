"""What people type: parses, calls one function of a room, prints. No logic, and no heavy import before it is used."""

import sys


def main() -> None:
    """The `narwhal` executable."""
    from narwhal.cli.verbs import run_app

    sys.exit(run_app())
