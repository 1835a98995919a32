"""`narwhal report`: what runs came to, and whether one is better than another."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from narwhal.cli.app import verb
from narwhal.cli.output import CommandError, Problem, Result

if TYPE_CHECKING:
    from narwhal.report import Report


class ReportFormat(StrEnum):
    """How a report is printed."""

    text = "text"
    markdown = "markdown"
    json = "json"


@verb("report", short_help="Show what benchmark runs came to, and whether one is better than another.")
def report(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR…", help="Folders of `narwhal bench`; result files of AIPerf, GuideLLM, vLLM, narwhal simulate."
        ),
    ],
    format: Annotated[
        ReportFormat, typer.Option("--format", help="text for people, markdown for a pull request, json for programs.")
    ] = ReportFormat.text,
) -> Result:
    """Show what runs came to: every point with its figures, and why figures do not count.

    Evidence whose digests do not agree is named and left out; points that are invalid are shown as such, and are in
    no plot and no comparison.

    Exit code: 0 all figures count, 1 a point is below its declared attainment, 3 some figures do not count, 2 a path
    is no evidence.

    Example: narwhal report run/bench

    Example: narwhal report run/bench --format markdown > report.md
    """
    from narwhal.report import ReportError, make_report, markdown, read_runs, text

    try:
        runs = read_runs(paths)
    except ReportError as error:
        raise CommandError(Problem(error.code, error.message, hint=error.hint)) from error
    made = make_report(runs)
    shown = markdown(made) if format is ReportFormat.markdown else text(made)
    return Result(_status(made), made.model_dump(mode="json", by_alias=True), text=shown)


def _status(made: "Report") -> str:
    standings = {point.standing for run in made.runs for point in run.points}
    if "missed" in standings:
        return "findings"
    if "invalid" in standings or any(run.unusable for run in made.runs):
        return "degraded"
    return "success"
