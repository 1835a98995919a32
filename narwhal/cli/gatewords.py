"""What the verbs of the gates share: their arguments, and their errors as problems."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from narwhal.cli.output import CommandError, Problem
from narwhal.cli.validate import finding_problem, source_problem

if TYPE_CHECKING:
    from narwhal.deploy import Opened

FleetArgument = Annotated[Path, typer.Argument(metavar="FLEET", help="Fleet file.")]
DirectoryOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="DIR", help="The run directory; default: run/NAME beside the fleet file."),
]


@contextmanager
def deploy_errors() -> Iterator[None]:
    """Turn what the gates raise into the errors of a verb."""
    from narwhal.deploy import DeployError
    from narwhal.fleet import FleetError, SourceError

    try:
        yield
    except FleetError as error:
        raise CommandError(*map(finding_problem, error.findings)) from None
    except SourceError as error:
        raise CommandError(source_problem(error)) from None
    except DeployError as error:
        problem = Problem(error.code, error.message, file=error.file, hint=error.hint)
        raise CommandError(problem, status="findings" if error.findings else "unusable") from None


def opened_run(fleet: Path, directory: Path | None) -> "Opened":
    """A fleet file and its run directory; what is wrong with them ends the verb."""
    from narwhal.deploy import open_run

    with deploy_errors():
        return open_run(fleet, directory)
