"""`narwhal hold` and `narwhal unhold`: freeze role moves, and let them go on."""

from typing import Annotated

import typer

from narwhal.cli.admin import FleetOption, RouterOption, TokenFileOption, router_admin
from narwhal.cli.app import verb
from narwhal.cli.output import Result


@verb("hold")
def hold(
    reason: Annotated[str, typer.Option("--reason", help="Why; `narwhal status` shows it.")] = "",
    router: RouterOption = None,
    fleet: FleetOption = None,
    token_file: TokenFileOption = None,
) -> Result:
    """Freeze role moves at once; requests are served as before.

    Example: narwhal hold --reason "load test until noon"
    """
    with router_admin(router, fleet, token_file) as admin:
        answer = admin.hold(reason)
    return Result(data=answer, text="role moves are on hold; `narwhal unhold` lets them go on")


@verb("unhold")
def unhold(router: RouterOption = None, fleet: FleetOption = None, token_file: TokenFileOption = None) -> Result:
    """Let role moves go on.

    Example: narwhal unhold
    """
    with router_admin(router, fleet, token_file) as admin:
        answer = admin.unhold()
    return Result(data=answer, text="role moves go on")
