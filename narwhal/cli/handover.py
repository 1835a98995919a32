"""`narwhal handover`: have the standby lead, as before work on the host of the router that leads."""

from narwhal.cli.admin import FleetOption, RouterOption, TokenFileOption, router_admin
from narwhal.cli.app import verb
from narwhal.cli.output import Result


@verb("handover")
def handover(router: RouterOption = None, fleet: FleetOption = None, token_file: TokenFileOption = None) -> Result:
    """Have the standby lead from now on; this router finishes its requests and follows.

    New requests get 503 here once the standby serves. Nothing changes when no router follows this one.

    Example: narwhal handover --fleet fleet.yaml
    """
    with router_admin(router, fleet, token_file) as admin:
        answer = admin.handover()
    return Result(data=answer, text=f"the router on {answer['leader']} leads; this one finishes what it has")
