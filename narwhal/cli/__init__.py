"""What people type: parses, calls one function of a room, prints. No logic, and no heavy import before it is used."""

import sys


def main() -> None:
    """The `narwhal` executable."""
    try:
        from narwhal.cli.verbs import run_app

        sys.exit(run_app())
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        sys.stderr.write(f"error[system]: cannot write the result: {error.strerror}\n")
        sys.exit(4)
