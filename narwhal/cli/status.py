"""`narwhal status` and `narwhal why`: what the router does, and why."""

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


@verb("why", short_help="Explain the last move, what held back others, and why engines are out.")
def why(router: RouterOption = None, fleet: FleetOption = None, token_file: TokenFileOption = None) -> Result:
    """Explain the last move, and what held back every better split since, in words and numbers.

    Where engines or pairs are out, slow or were so lately: why, and what is reduced for it.

    Example: narwhal why --fleet fleet.yaml
    """
    from narwhal.diagnose import explain, learning_lines, standing_lines

    with router_admin(router, fleet, token_file) as admin:
        decisions, document, state, changes = admin.decisions(), admin.moves(), admin.state(), admin.changes()
    moves = document["moves"]
    made = [decision for decision in moves if decision["outcome"] != "held"]
    held = [decision for decision in decisions if decision["outcome"] == "held"]
    lines = explain(moves, decisions, document["now_t"], state["hold"]["reason"])
    wrong = standing_lines(state, changes["changes"], changes["now_t"])
    text = "\n".join([*lines, *([""] if wrong else []), *wrong, *learning_lines(state)])
    data = {"now_t": document["now_t"], "moves": made, "held": held, "degraded": state["degraded"]}
    return Result(data={**data, "changes": changes["changes"]}, text=text)
