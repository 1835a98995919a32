"""`narwhal handover`: have the standby lead, as before work on the host of the router that leads."""

from narwhal.cli.admin import FleetOption, RouterOption, TokenFileOption, router_admin
from narwhal.cli.app import verb
from narwhal.cli.output import CommandError, Problem, Result

_HINTS = {
    404: "name a second router in routers.standby, restart this one, and start that one",
    409: "narwhal-serve --standby --fleet FILE starts it; narwhal status says who follows",
}
"""What to do about a refusal, by its HTTP status."""


@verb("handover")
def handover(router: RouterOption = None, fleet: FleetOption = None, token_file: TokenFileOption = None) -> Result:
    """Have the standby lead from now on; this router finishes its requests and follows.

    New requests get 503 here once the standby serves. Nothing changes when no router follows this one.

    Example: narwhal handover --fleet fleet.yaml
    """
    from narwhal.diagnose import RefusedError

    with router_admin(router, fleet, token_file) as admin:
        try:
            answer = admin.handover()
        except RefusedError as error:
            if error.body.get("order") != "handover" or error.status not in _HINTS:
                raise
            problem = Problem("refused", str(error), hint=_HINTS[error.status])
            raise CommandError(problem, status="failed", data=error.body) from None
        which = (admin.state().get("lease") or {}).get("leader_is") or "router"
    return Result(data=answer, text=f"the {which} on {answer['leader']} leads; this one finishes what it has")
