"""`narwhal status`: what the router does."""

from narwhal.cli.admin import FleetOption, RouterOption, TokenFileOption, router_admin
from narwhal.cli.app import verb
from narwhal.cli.output import Result


@verb("status", short_help="Show the split, the load, the queue, every engine.")
def status(router: RouterOption = None, fleet: FleetOption = None, token_file: TokenFileOption = None) -> Result:
    """Show the split, the load against its targets, the queue and every engine.

    Example: narwhal status --router http://127.0.0.1:8001
    """
    from narwhal.diagnose import lease_is_well, only_follows, status_lines

    with router_admin(router, fleet, token_file) as admin:
        state = admin.state()
    live = only_follows(state) or all(engine["state"] == "live" for engine in state["engines"])
    well = live and lease_is_well(state)
    return Result(status="success" if well else "degraded", data=state, text="\n".join(status_lines(state)))
