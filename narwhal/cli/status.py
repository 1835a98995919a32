"""`narwhal status`: what the router does."""

from narwhal.cli.admin import FleetOption, RouterOption, TokenFileOption, router_admin
from narwhal.cli.app import verb
from narwhal.cli.output import Result


@verb("status", short_help="Show the split, the load, the queue, every engine.")
def status(router: RouterOption = None, fleet: FleetOption = None, token_file: TokenFileOption = None) -> Result:
    """Show the split, the load against its targets, the queue, every engine, the last move, what is wrong.

    Exit code 3: an engine is out or drained, or the lease is not well; the last line is what to type next.

    Example: narwhal status --router http://127.0.0.1:8001
    """
    from narwhal.diagnose import incident_lines, lease_is_well, only_follows, status_lines

    with router_admin(router, fleet, token_file) as admin:
        state, moves, links = admin.state(), admin.moves(), admin.links()
    live = only_follows(state) or all(engine["state"] == "live" for engine in state["engines"])
    well = live and lease_is_well(state)
    told = incident_lines(state, moves, links)
    lines = [*status_lines(state), *([""] if told else []), *told]
    return Result(status="success" if well else "degraded", data=state, text="\n".join(lines))
