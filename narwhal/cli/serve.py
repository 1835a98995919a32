"""`narwhal-serve`: the router alone, the way a unit file starts it."""

import argparse
import os
import sys
from pathlib import Path
from typing import NoReturn

import narwhal
from narwhal.cli.output import STATUSES, Problem, Result, show

_EXAMPLES = """examples:
  narwhal-serve --fleet fleet.yaml
  narwhal-serve --fleet /etc/narwhal/fleet.yaml --state-dir /var/lib/narwhal
  narwhal-serve --fleet /etc/narwhal/fleet.yaml --standby
  narwhal-serve --fleet /etc/narwhal/fleet.yaml --resume

SIGTERM or Ctrl-C stops it: nothing new is accepted, running requests finish for serving.shutdown_s seconds;
a second signal ends them. SIGHUP reads the fleet file again, as narwhal reload does. Exit codes: 0 stopped,
2 arguments or a fleet file that cannot be used, 4 it cannot listen."""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors read like those of `narwhal`."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong with the arguments, and exit with 2."""
        hint = f"{self.prog} --fleet fleet.yaml; {self.prog} --help"
        sys.exit(_fail("unusable", Problem("usage", message, hint=hint)))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="narwhal-serve",
        description="Serve a fleet: the router and its role controller.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--fleet", required=True, metavar="FILE", help="the fleet file")
    parser.add_argument("--state-dir", metavar="DIR", help="where the journal is kept (default: by systemd, else XDG)")
    parser.add_argument(
        "--standby",
        action="store_true",
        help="be the standby (routers.standby): follow, and take over when the other ends",
    )
    parser.add_argument(
        "--revoke", action="store_true", help="end the lease that this router left when it died, for ExecStopPost="
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="go on from what the router kept in recovery.state_path: roles, pins, holds, drains, and what it learned",
    )
    parser.add_argument("--version", action="version", version=f"narwhal-serve {narwhal.__version__}")
    return parser


def main(argv: list[str] | None = None) -> None:
    """The `narwhal-serve` executable."""
    arguments = _parser().parse_args(argv)
    if arguments.revoke:
        sys.exit(_revoke(arguments.fleet, arguments.state_dir, standby=arguments.standby))
    sys.exit(_serve(arguments.fleet, arguments.state_dir, standby=arguments.standby, resume=arguments.resume))


def _serve(fleet: str, state_dir: str | None, *, standby: bool, resume: bool) -> int:
    from narwhal.fleet import FleetError, ProfileError, SourceError, open_fleet
    from narwhal.fleet.places import default_state_dir
    from narwhal.router import ServeError, serve

    try:
        file = Path(fleet)
        folder = Path(state_dir) if state_dir else default_state_dir(os.environ)
        expanded = open_fleet(file)
        if resume and expanded.fleet.recovery.state_path is None:
            text = "--resume: the fleet file does not say where the router keeps its state (recovery.state_path)"
            return _fail("unusable", Problem("resume", text, fleet, hint="recovery: {state_path: state.json}"))
        serve(expanded, state_dir=folder, file=file, standby=standby, resume=resume)
    except FleetError as error:
        problems = [Problem(f.id, f.message, f.file, f.line, f.column, f.field, f.hint) for f in error.findings]
        return _fail("unusable", *problems)
    except SourceError as error:
        return _fail("unusable", Problem(error.code, error.message, error.file, error.line, hint=error.hint))
    except ProfileError as error:
        return _fail("unusable", Problem("profile", str(error)))
    except ServeError as error:
        return _fail("failed", Problem("serve", str(error)))
    return STATUSES["success"]


def _revoke(fleet: str, state_dir: str | None, *, standby: bool) -> int:
    from narwhal.fleet import FleetError, SourceError, open_fleet
    from narwhal.fleet.places import default_state_dir
    from narwhal.router import LeaseError, revoke

    folder = Path(state_dir) if state_dir else default_state_dir(os.environ)
    try:
        found = open_fleet(Path(fleet)).fleet
        revoke(found.lease, found.metadata.name, folder, os.environ, standby=standby)
    except (FleetError, SourceError) as error:
        return _fail("unusable", Problem("fleet", str(error), file=fleet, hint=f"narwhal validate {fleet}"))
    except LeaseError as error:
        hint = "it ends by itself within lease.ttl_s"
        return _fail("failed", Problem("lease", f"the lease could not be revoked: {error}", hint=hint))
    return STATUSES["success"]


def _fail(status: str, *problems: Problem) -> int:
    return show("serve", Result(status, errors=problems), as_json=False, quiet=False, color=False)


if __name__ == "__main__":
    main()
