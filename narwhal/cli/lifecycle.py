"""`narwhal drain`, `readmit` and `pin`: what is ordered about engines."""

import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Annotated, Any

import typer

from narwhal.cli.admin import FleetOption, RouterOption, TokenFileOption, router_admin, same_router
from narwhal.cli.app import progress, verb
from narwhal.cli.output import CommandError, Problem, Result

if TYPE_CHECKING:
    from narwhal.diagnose import AdminClient

Json = dict[str, Any]
POLL_S = 0.5
"""Time between two looks at how far it is, in seconds."""
EnginesArgument = Annotated[
    list[str], typer.Argument(metavar="ENGINE|HOST", help="Engines such as gpu-1/0, or hosts: all engines of each.")
]


@verb("drain", short_help="Take engines out of service until nothing needs them.")
def drain(
    engines: EnginesArgument,
    deadline: Annotated[
        float | None,
        typer.Option("--deadline", min=0, metavar="SECONDS", help="Serve elsewhere, or end, what is left then."),
    ] = None,
    stay: Annotated[
        bool, typer.Option("--stay", help="Keep the drain when another process is started, until narwhal readmit.")
    ] = False,
    move: Annotated[
        bool, typer.Option("--move", help="Where a role would fall below its floor, give it to engines that stay.")
    ] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="End the drain.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until all of them can be stopped.")] = False,
    router: RouterOption = None,
    fleet: FleetOption = None,
    token_file: TokenFileOption = None,
) -> Result:
    """Give engines nothing new; they can be stopped once no request is on them and no KV of theirs may be read.

    Refused as a whole when a role would fall below its floor. The next process of a drained engine is readmitted by
    itself, and that ends the drain. Exit code: 0 done, 4 refused, or somebody else ended the drain that was waited for.

    Examples: narwhal drain gpu-1/0 --wait; narwhal drain gpu-1 --deadline 60 --wait; narwhal drain gpu-1 --cancel
    """
    from narwhal.diagnose import may_stop

    if cancel and (wait or stay or move or deadline is not None):
        raise CommandError(Problem("usage", "--cancel goes with no other option", hint="narwhal drain ENGINE --cancel"))
    with router_admin(router, fleet, token_file) as admin:
        before = {engine["id"] for engine in admin.state()["engines"] if engine.get("drain")} if cancel else set()
        answer = _ordered(
            lambda: admin.drain(engines, deadline_s=deadline, stay=stay, cancel=cancel, move=move),
            same_router(router, fleet),
            can_move=not move,
        )
        names = [engine["id"] for engine in answer["engines"]]
        if cancel:
            return Result(data=answer, text=_cancelled(names, before))
        if not wait:
            return Result(data=answer, text=_begun(answer["engines"]))
        last = _watch(admin, names, done=may_stop, lost=lambda engine: engine.get("drain") is None)
    return Result(data={**answer, "engines": last}, text=f"drained, can be stopped: {', '.join(names)}")


@verb("readmit", short_help="Let drained engines, and such that are out, have work again.")
def readmit(
    engines: EnginesArgument,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until all of them have work.")] = False,
    router: RouterOption = None,
    fleet: FleetOption = None,
    token_file: TokenFileOption = None,
) -> Result:
    """End the drains of engines, and have those that are out tried at once, whatever the limit on restarts.

    They get work once they have proven themselves; narwhal why says what keeps one out.

    Examples: narwhal readmit gpu-1/0; narwhal readmit gpu-1 --wait
    """
    with router_admin(router, fleet, token_file) as admin:
        answer = _ordered(lambda: admin.readmit(engines), same_router(router, fleet))
        names = [engine["id"] for engine in answer["engines"]]
        if wait:
            answer = {**answer, "engines": _watch(admin, names, done=_is_live, lost=lambda engine: False)}
    waiting = [engine["id"] for engine in answer["engines"] if engine["state"] != "live"]
    text = f"live: {', '.join(names)}" if not waiting else f"to be readmitted once they are well: {', '.join(waiting)}"
    return Result(data=answer, text=text)


@verb("pin", short_help="Bind an engine to a role, or free it.")
def pin(
    engine: Annotated[str, typer.Argument(help="Engine such as gpu-1/0.")],
    role: Annotated[str, typer.Argument(help="prefill, decode, or none to free it.")],
    router: RouterOption = None,
    fleet: FleetOption = None,
    token_file: TokenFileOption = None,
) -> Result:
    """Bind an engine to a role: it is moved there if need be, guarded as narwhal move is, and never leaves it.

    It counts until the fleet file's own pin of that engine changes (engines.overrides.*.pin).

    Examples: narwhal pin gpu-1/0 prefill; narwhal pin gpu-1/0 none
    """
    if role not in ("prefill", "decode", "none"):
        raise CommandError(Problem("role", f"{role!r} is no role", field="ROLE", hint="write prefill, decode or none"))
    with router_admin(router, fleet, token_file) as admin:
        answer = _ordered(lambda: admin.pin(engine, role), same_router(router, fleet))
    return Result(data=answer, text=f"{engine} is pinned to {role}" if role != "none" else f"{engine} is free to move")


def _cancelled(names: list[str], before: Collection[str]) -> str:
    ended = ", ".join(name for name in names if name in before)
    never = ", ".join(name for name in names if name not in before)
    said = [f"not drained any more: {ended}" if ended else "", f"was not being drained: {never}" if never else ""]
    return "\n".join(filter(None, said))


def _begun(engines: list[Json]) -> str:
    done = ", ".join(engine["id"] for engine in engines if engine["state"] == "drained")
    under_way = ", ".join(engine["id"] for engine in engines if engine["state"] != "drained")
    said = [
        f"drained, can be stopped: {done}" if done else "",
        f"draining {under_way}; narwhal status says how far it is" if under_way else "",
    ]
    return "\n".join(filter(None, said))


def _may_stand_in(guards: list[Json]) -> bool:
    """Whether enough engines stay for the floors that hold a drain, and one more for the role that has none asked."""
    floors = [guard["limit"] for guard in guards if guard["name"] in ("min_prefill", "min_decode")]
    left = next((guard["value"] for guard in guards if guard["name"] == "live"), 0)
    return bool(floors) and left >= sum(floors) + (len(floors) == 1)


def _ordered(order: Callable[[], Json], where: str, *, can_move: bool = False) -> Json:
    """The answer to an order; what held it is said in words. `can_move`: engines that stay could take over a role."""
    from narwhal.diagnose import RefusedError, refusal

    try:
        return order()
    except RefusedError as error:
        decision = error.body.get("decision")
        if not decision:
            raise
        hint = "; --move gives a role to engines that stay" if can_move and _may_stand_in(decision["guards"]) else ""
        problem = Problem("held", f"nothing was changed: {refusal(decision)}", hint=f"narwhal why{where}{hint}")
        raise CommandError(problem, status="failed", data=error.body) from None


def _is_live(engine: Json) -> bool:
    return bool(engine["state"] == "live")


def _watch(
    admin: "AdminClient", names: Collection[str], *, done: Callable[[Json], bool], lost: Callable[[Json], bool]
) -> list[Json]:
    """Wait until all engines stand as they are to, and say how far they are; they are returned as they stand then."""
    from narwhal.diagnose import drain_words

    said: dict[str, str] = {}
    while True:
        engines = [engine for engine in admin.state()["engines"] if engine["id"] in names]
        for engine in engines:
            reason = f"{engine['id']} is {engine['state']}" + (f": {engine['reason']}" if engine["reason"] else "")
            words = drain_words(engine) if engine.get("drain") is not None else reason
            if said.get(engine["id"]) != words:
                said[engine["id"]] = words
                progress().say(words)
        if len(engines) == len(names) and all(map(done, engines)):
            return [{key: engine[key] for key in ("id", "role", "pin", "state")} for engine in engines]
        gone = [engine["id"] for engine in engines if lost(engine)] or sorted(set(names) - {e["id"] for e in engines})
        if gone:
            text = f"{', '.join(gone)}: somebody else ended the drain, or took the engine out of the fleet"
            raise CommandError(Problem("lost", text, hint="narwhal status"), status="failed")
        time.sleep(POLL_S)
