"""`narwhal move`: ask for a role, guarded like the controller's own moves."""

from typing import Annotated

import typer

from narwhal.cli.admin import FleetOption, RouterOption, TokenFileOption, router_admin, same_router
from narwhal.cli.app import verb
from narwhal.cli.output import CommandError, Problem, Result


@verb("move", short_help="Give an engine a role, or have two exchange theirs.")
def move(
    engine: Annotated[str, typer.Argument(help="Engine to move, such as gpu-1/0; with --swap the first of two.")],
    role: Annotated[str, typer.Argument(help="prefill or decode; with --swap the second engine.")],
    swap: Annotated[bool, typer.Option("--swap", help="Two engines exchange their roles.")] = False,
    router: RouterOption = None,
    fleet: FleetOption = None,
    token_file: TokenFileOption = None,
) -> Result:
    """Give an engine a role, or have two exchange theirs; pins, floors and holds are respected.

    Examples: narwhal move gpu-1/0 decode; narwhal move --swap gpu-1/0 gpu-2/3
    """
    if not swap and role not in ("prefill", "decode"):
        raise CommandError(
            Problem("role", f"{role!r} is no role", field="ROLE", hint="write prefill or decode, or use --swap")
        )
    if swap and engine == role:
        raise CommandError(Problem("engine", f"{engine} cannot be swapped with itself", hint="name two engines"))
    from narwhal.diagnose import RefusedError, refusal

    with router_admin(router, fleet, token_file) as admin:
        try:
            decision = admin.swap(engine, role) if swap else admin.move(engine, role)
        except RefusedError as error:
            if "outcome" not in error.body:
                raise
            decision = error.body
        moved = decision["outcome"] == "moved"
        why = "" if moved else refusal(decision, admin.state()["hold"]["reason"])
    if not moved:
        raise CommandError(
            Problem("held", f"nothing was moved: {why}", hint=f"narwhal why{same_router(router, fleet)}"),
            status="failed",
            data=decision,
        )
    moves = ", ".join(f"{row['engine']} {row['source']} → {row['target']}" for row in decision["moves"])
    return Result(data=decision, text=f"moved {moves}: {decision['reason']}")
