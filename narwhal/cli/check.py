"""`narwhal check`: whether a running fleet can serve."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from narwhal.cli.app import progress, verb
from narwhal.cli.output import CommandError, Problem, Result
from narwhal.cli.validate import opened_fleet

if TYPE_CHECKING:
    from narwhal.preflight import CheckResult, Name, Preflight

_STATUSES = {"ok": "success", "FAIL": "findings", "WARN": "degraded"}


@verb("check", short_help="Prove that running engines can serve: each one, and KV over every pair.")
def check(
    fleet: Annotated[Path, typer.Argument(help="Fleet file; its engines must run, and be idle.")],
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this check (and reach); may be repeated.")
    ] = None,
    ring: Annotated[
        bool, typer.Option("--ring", help="Hand over from each engine to the next, instead of over all pairs.")
    ] = False,
    repeats: Annotated[int, typer.Option(min=1, help="Handoffs of each pair, each with a prompt of its own.")] = 1,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds an engine may take for one answer.")] = 30.0,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where the evidence goes; default: evidence/preflight beside the file."),
    ] = None,
) -> Result:
    """Check running engines, and KV over every directed pair of them; the evidence goes to a file of its own.

    Checks: reach, contract, launch, compatible, profile, model, pace, tokenize, produce, consume, transport, slo,
    deadline. Exit code 0: all ok or skipped, 1: a check failed, 3: something is not as it should be.

    Example: narwhal check fleet.yaml

    Example: narwhal check fleet.yaml --only consume --ring --repeats 5
    """
    import uvloop

    from narwhal.preflight import Wish, preflight, save_preflight
    from narwhal.profiling import EngineError

    expanded = opened_fleet(fleet)
    names = _names(only or [])
    profiles = expanded.profiles
    wish = Wish(expanded, fleet, profiles, names, ring, repeats, timeout)
    try:
        document = uvloop.run(preflight(wish, progress().say))
    except EngineError as error:
        raise CommandError(Problem("engine", str(error), str(fleet))) from error
    path = save_preflight(out or fleet.parent / "evidence" / "preflight", document)
    problems = [
        Problem(one.name, f"{one.subject}: {one.reason}", str(fleet), hint=one.next_step or None)
        for one in document.checks
        if one.status == "FAIL"
    ]
    data = {"preflight": document.model_dump(mode="json", by_alias=True)}
    return Result(_STATUSES[document.verdict], data, [str(path)], problems, _text(document, path))


def _names(only: Sequence[str]) -> "tuple[Name, ...]":
    from narwhal.preflight import NAMES

    for name in only:
        if name not in NAMES:
            raise CommandError(Problem("check", f"there is no check {name!r}", hint=f"one of {', '.join(NAMES)}"))
    return tuple(name for name in NAMES if name in only)


def _text(document: "Preflight", path: Path) -> str:
    """A line for each check; what is not ok, line by line with its reason and the next step."""
    lines = []
    for name in dict.fromkeys(check.name for check in document.checks):
        mine = [check for check in document.checks if check.name == name]
        fine = [check for check in mine if check.status == "ok"]
        if fine:
            all_of = f"all {len(mine)}" if len(fine) == len(mine) else f"{len(fine)} of {len(mine)}"
            lines.append(
                f"ok    {name:<10} {f'{all_of}: ' if len(mine) > 1 else ''}{fine[0].subject}: {fine[0].reason}"
            )
        for reasons in _alike([check for check in mine if check.status != "ok"]):
            subjects = ", ".join(check.subject for check in reasons)
            lines.append(f"{reasons[0].status:<5} {name:<10} {subjects}: {reasons[0].reason}")
            if reasons[0].next_step:
                lines.append(f"{'':<16} next: {reasons[0].next_step}")
    return "\n".join([*lines, f"{document.verdict} after {document.seconds:.1f} s; evidence: {path}"])


def _alike(checks: "Sequence[CheckResult]") -> "list[list[CheckResult]]":
    """Checks that are told in one line: the same status, reason and next step."""
    groups: dict[tuple[str, str, str], list[CheckResult]] = {}
    for check in checks:
        groups.setdefault((check.status, check.reason, check.next_step), []).append(check)
    return list(groups.values())
