"""`narwhal drill`: let faults happen on purpose, on a fleet that comes and goes, and see what comes of them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from narwhal.cli.app import app, progress, verb
from narwhal.cli.output import CommandError, Problem, Result

if TYPE_CHECKING:
    from narwhal.drills import Done, Drill

group = typer.Typer(
    name="drill",
    help="Faults that are made on purpose, on fleets of their own: list, run.\n\n"
    "Example: narwhal drill run engine-hangs",
    short_help="Faults that are made on purpose, on fleets of their own: list, run.",
    no_args_is_help=True,
)
app.add_typer(group)
ALL = "all"


@verb("list", group=group)
def list_drills() -> Result:
    """List the drills: what goes wrong, what must come of it, what the machine needs for it.

    Example: narwhal drill list
    """
    from narwhal.drills import DRILLS

    lines = []
    for drill in DRILLS:
        lines += [f"{drill.name}: {drill.fault}", f"    {drill.goal}"]
        notes = [f"needs {', '.join(drill.plan.needs)}"] if drill.plan.needs else []
        notes += [f"--strict judges {', '.join(goal.words for goal in drill.goals)}"] if drill.goals else []
        lines += [f"    ({'; '.join(notes)})"] if notes else []
    return Result(data={"drills": [drill.data() for drill in DRILLS]}, text="\n".join(lines))


@verb("run", group=group, short_help="Run drills, and say what came of each.")
def run(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Drills to run, or all.")],
    strict: Annotated[bool, typer.Option("--strict", help="Judge times, and shares, by their goals too.")] = False,
    real: Annotated[
        bool, typer.Option("--real", help="On vLLM on this machine's CPU, which is installed first; three of them can.")
    ] = False,
    keep: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where what failed leaves its logs; default: a temporary folder."),
    ] = None,
) -> Result:
    """Run drills: each starts simulated engines and routers on loopback, serves traffic, and lets its fault happen.

    Exit code 0: all passed; 1: one failed; 3: none failed, and one could not be run here (not root, no etcd).

    Example: narwhal drill run engine-hangs router-killed

    Example: sudo narwhal drill run all --strict --format json

    Example: narwhal drill run all --real
    """
    from narwhal.drills import run_drills

    done = run_drills(_named(names, real=real), progress().say, strict=strict, real=real, where=keep)
    failed = [one for one in done if one.outcome == "failed"]
    lacking = [one for one in done if one.outcome == "unavailable"]
    status = "findings" if failed else "degraded" if lacking else "success"
    problems = [Problem(one.name, one.reason, hint=f"its logs and journals: {one.kept}") for one in failed]
    data = {"drills": [one.data() for one in done]}
    return Result(status, data, [one.kept for one in failed], problems, _text(done))


def _named(names: list[str], *, real: bool) -> "list[Drill]":
    from narwhal.drills import DRILLS, REAL

    known = {drill.name: drill for drill in (REAL if real else DRILLS)}
    for name in names:
        if name != ALL and name not in known:
            hint = f"all, or some of {', '.join(known)}"
            text = f"there is no drill {name!r}{' on real engines' if real else ''}"
            raise CommandError(Problem("drill", text, hint=hint))
    return [drill for name, drill in known.items() if ALL in names or name in names]


def _text(done: "list[Done]") -> str:
    """A line for each drill."""
    width = max(len(one.name) for one in done)
    lines = [f"{one.outcome:<11} {one.name:<{width}} {one.seconds:6.1f} s {one.reason}".rstrip() for one in done]
    counts = [f"{sum(one.outcome == word for one in done)} {word}" for word in ("passed", "failed", "unavailable")]
    return "\n".join([*lines, ", ".join(counts)])
