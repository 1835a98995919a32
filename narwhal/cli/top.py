"""`narwhal top`: the live page in a terminal."""

import sys
from typing import Annotated

import typer

from narwhal.cli.admin import FleetOption, RouterOption, TokenFileOption, router_admin
from narwhal.cli.app import progress, verb
from narwhal.cli.output import CommandError, Problem, Result

_WIDTH = 400
"""Of lines that no terminal shows: nothing is cut."""


@verb("top", short_help="Watch the router live: split, load, moves, links.")
def top(
    router: RouterOption = None,
    fleet: FleetOption = None,
    token_file: TokenFileOption = None,
    once: Annotated[bool, typer.Option("--once", help="Print it one time, for scripts.")] = False,
) -> Result:
    """Watch a router in the terminal: what its live page shows, drawn anew each second, until q or Ctrl-C.

    Keys: q quit, p pause, ? help. When the router is lost it says so, and tries again. --once prints all of it one
    time; with --format json it is the data of the events (narwhal schema live).

    Example: narwhal top --fleet fleet.yaml
    """
    from narwhal.dev import ends_like_ctrl_c
    from narwhal.diagnose.watch import look_once

    as_json = progress().as_json
    if not once and (as_json or not (sys.stdin.isatty() and sys.stdout.isatty())):
        hint = "narwhal top --once prints it one time"
        raise CommandError(Problem("no_terminal", "this shows itself in a terminal, and here is none", hint=hint))
    with router_admin(router, fleet, token_file) as admin:
        parts = look_once(admin)
        if not once:
            from narwhal.diagnose.top import show_live

            with ends_like_ctrl_c():
                show_live(admin, parts, color=progress().color)
            return Result(data=parts)
    return Result(data=parts, text=None if as_json else _printed(parts))


def _printed(parts: dict[str, dict[str, object]]) -> str:
    from rich.console import Console

    from narwhal.diagnose.screen import Screen
    from narwhal.diagnose.top import first_view

    seen = sys.stdout.isatty()
    console = Console(no_color=not (progress().color and seen), highlight=False, width=None if seen else _WIDTH)
    with console.capture() as printed:
        console.print(Screen(first_view(parts), whole=True))
    return "\n".join(line.rstrip() for line in printed.get().splitlines())
