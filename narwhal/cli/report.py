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
    against: Annotated[
        Path | None,
        typer.Option("--against", metavar="DIR", help="Judge the one run that is named against this one."),
    ] = None,
    request: Annotated[
        list[str] | None,
        typer.Option(
            "--request", metavar="ID", help="Tell this request's life too; slowest: one of each point. Again for more."
        ),
    ] = None,
    plots: Annotated[
        Path | None,
        typer.Option(
            "--plots", metavar="DIR", help="Draw plots into this folder, PNG and SVG (needs the plots extra)."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the resamples that --against draws.")] = 1,
    format: Annotated[
        ReportFormat, typer.Option("--format", help="text for people, markdown for a pull request, json for programs.")
    ] = ReportFormat.text,
) -> Result:
    """Show what runs came to: every point with its figures, and why figures do not count.

    Evidence whose digests do not agree is named and left out; points that are invalid are shown as such, and are in
    no plot and no comparison.

    --against says of every figure of the points that both runs have by how much it differs, and whether that is
    better, worse, or cannot be told.

    Exit code: 0 all figures count, 1 a point is below its declared attainment or worse than the other run's, 3 some
    figures do not count, 2 a path is no evidence.

    Example: narwhal report run/bench

    Example: narwhal report run/bench --format markdown > report.md

    Example: narwhal report run/after --against run/before --plots plots
    """
    from narwhal.report import ReportError, check_plots, draw_plots, make_report, markdown, read_runs, text

    drawn: list[str] = []
    if against is not None and len(paths) > 1:
        raise CommandError(Problem("usage", "--against judges one run", hint="name one DIR"))
    try:
        if plots is not None:
            check_plots()
        runs = read_runs([*paths, against] if against is not None else paths)
        judge = runs[-1] if against is not None else None
        made = make_report(runs[: len(paths)], judge, seed=seed, requests=request or [])
        if plots is not None:
            drawn = [str(path) for path in draw_plots(runs, made.requests, plots)]
    except ReportError as error:
        raise CommandError(Problem(error.code, error.message, hint=error.hint)) from error
    pictures = [path for path in drawn if path.endswith(".png")]
    shown = markdown(made, pictures) if format is ReportFormat.markdown else text(made, pictures)
    return Result(_status(made), made.model_dump(mode="json", by_alias=True), drawn, text=shown)


def _status(made: "Report") -> str:
    standings = {point.standing for run in made.runs for point in run.points}
    worse = made.comparison is not None and any(one.verdict == "worse" for one in made.comparison.points)
    if worse or "missed" in standings:
        return "findings"
    if "invalid" in standings or any(run.unusable for run in made.runs):
        return "degraded"
    return "success"
