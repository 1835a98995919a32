"""`narwhal reload`: have a running router follow its changed fleet file."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from narwhal.cli.admin import RouterOption, router_admin
from narwhal.cli.app import verb
from narwhal.cli.output import CommandError, Problem, Result
from narwhal.cli.validate import finding_problem, source_problem

if TYPE_CHECKING:
    from narwhal.diagnose import AdminClient


@verb("reload", short_help="Have the router follow its changed fleet file.")
def reload(
    fleet: Annotated[Path, typer.Argument(metavar="FLEET", help="The fleet file that the router was started with.")],
    check: Annotated[bool, typer.Option("--check", help="Say what would be applied, and change nothing.")] = False,
    router: RouterOption = None,
) -> Result:
    """Have the router read its fleet file again, and say what is in force now and what needs a restart.

    A file with a problem changes nothing. Exit code: 0 all of it is in force, 3 some of it needs a restart, 2 the file
    cannot be used, 4 the router cannot be reached, reads another file, or would be left without an engine for a role.

    Example: narwhal reload fleet.yaml --check
    """
    from narwhal.diagnose import reload_lines

    digest = _digest(fleet)
    with router_admin(router, None if router else fleet) as admin:
        answer = _ask(admin, check=True)
        if answer["digest"] != digest:
            text = f"the router reads {answer['file']}, which says something else than {fleet}; nothing was changed"
            raise CommandError(
                Problem("other_file", text, hint="put the file there, on the router's host"), status="failed"
            )
        if not check:
            answer = _ask(admin, check=False)
    status = "degraded" if answer["restart"] else "success"
    return Result(status=status, data=answer, text="\n".join(reload_lines(answer)))


def _digest(fleet: Path) -> str:
    from narwhal.fleet import FleetError, SourceError, open_fleet

    try:
        return open_fleet(fleet).fleet.digest()
    except FleetError as error:
        raise CommandError(*map(finding_problem, error.findings)) from None
    except SourceError as error:
        raise CommandError(source_problem(error)) from None


def _ask(admin: "AdminClient", *, check: bool) -> dict[str, Any]:
    from narwhal.diagnose import RefusedError

    try:
        return admin.reload(check=check)
    except RefusedError as error:
        if error.body.get("kind") != "Reload":
            raise
        problems = [Problem(**row) for row in error.body["errors"]]
        status = "failed" if any(problem.code in ("floor", "bug") for problem in problems) else "unusable"
        raise CommandError(*problems, status=status, data=error.body) from None
