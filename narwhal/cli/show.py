"""`narwhal show`."""

from typing import Annotated

import typer

from narwhal.cli.app import verb
from narwhal.cli.output import CommandError, Result
from narwhal.cli.validate import finding_problem, source_problem


@verb("show", short_help="Print the configuration in effect, and where from.")
def show(
    file: Annotated[str, typer.Argument(help="Fleet file, or - for stdin.")],
    engines: Annotated[bool, typer.Option("--engines", help="Print the engines and routers it expands to.")] = False,
) -> Result:
    """Print the configuration in effect: each value, and the line it comes from.

    Example: narwhal show fleet.yaml --engines
    """
    from narwhal.fleet import SourceError, check_file, effective, expand

    try:
        checked = check_file(file)
    except SourceError as error:
        raise CommandError(source_problem(error)) from None
    if checked.fleet is None:
        raise CommandError(*map(finding_problem, checked.findings), status="findings")
    expanded = expand(checked.fleet)
    values = effective.effective(checked)
    data = {"values": [{"field": v.field, "value": v.value, "origin": v.origin} for v in values]}
    data |= effective.engines_data(expanded)
    head = effective.fleet_line(checked.fleet, expanded)
    body = effective.engines_text(expanded) if engines else effective.effective_text(values)
    return Result(data=data, text=f"{head}\n\n{body}")
