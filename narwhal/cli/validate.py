"""`narwhal validate`."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

import narwhal
from narwhal.cli.app import progress, verb
from narwhal.cli.output import CommandError, Problem, Result

if TYPE_CHECKING:
    from pathlib import Path

    from narwhal.fleet import Expanded, Finding, SourceError


class ReportFormat(StrEnum):
    """How findings are printed."""

    text = "text"
    json = "json"
    github = "github"
    sarif = "sarif"
    markdown = "markdown"


@verb("validate")
def validate(
    files: Annotated[
        list[str] | None, typer.Argument(metavar="FILE", help="Fleet files, directories of them, or - for stdin.")
    ] = None,
    rules: Annotated[
        bool, typer.Option("--rules", help="Print every rule, with what it means and how to fix it.")
    ] = False,
    format: Annotated[
        ReportFormat,
        typer.Option(
            "--format",
            help="text for people, json for one CommandResult, github or sarif for CI; markdown for --rules.",
        ),
    ] = ReportFormat.text,
) -> Result:
    """Find everything that is wrong with fleet files, offline.

    Exit code: 0 nothing, 1 findings, 2 a file that cannot be judged.

    Example: narwhal validate fleet.yaml --format sarif > fleet.sarif
    """
    from narwhal.fleet import report

    if rules:
        text = report.rules_markdown() if format is ReportFormat.markdown else report.rules_text()
        return Result(data={"rules": report.rules_data()}, text=text)
    if not files:
        raise CommandError(Problem("usage", "no file is named", hint="narwhal validate fleet.yaml"))
    if format is ReportFormat.markdown:
        raise CommandError(Problem("usage", "markdown is for --rules", hint="use text, json, github or sarif"))
    return _check(files, format)


def _check(names: list[str], format_: ReportFormat) -> Result:
    from narwhal.fleet import SourceError, check_file, fleet_files, report

    findings: list[Finding] = []
    unusable: list[Problem] = []
    listed = []
    for name in names:
        try:
            for file in fleet_files([name]):
                checked = check_file(file)
                findings += checked.findings
                listed.append({"file": file, "findings": len(checked.findings), "older_version": checked.older})
                if checked.older:
                    progress().say(f"{file}: read as {checked.older}; `narwhal migrate {file} --write` rewrites it")
        except SourceError as error:
            unusable.append(source_problem(error))
            listed.append({"file": error.file, "findings": None, "older_version": None})
    data = {"files": listed, "findings": [finding_data(f) for f in findings]}
    status = "unusable" if unusable else "findings" if findings else "success"
    if format_ is ReportFormat.json:
        return Result(status, data=data, errors=[*unusable, *map(finding_problem, findings)])
    if format_ is ReportFormat.sarif:
        text = report.as_sarif(findings, narwhal.__version__)
    elif format_ is ReportFormat.github:
        text = report.as_github(findings)
    else:
        text = report.as_text(findings) or ("" if unusable else f"{len(listed)} ok" if len(listed) > 1 else "ok")
    return Result(status, data=data, text=text, errors=unusable)


def opened_fleet(path: "Path") -> "Expanded":
    """The expanded fleet of a file, for verbs that work on one; what is wrong with it ends the verb."""
    from narwhal.fleet import FleetError, SourceError, open_fleet

    try:
        return open_fleet(path)
    except FleetError as error:
        raise CommandError(*map(finding_problem, error.findings)) from error
    except SourceError as error:
        raise CommandError(source_problem(error)) from error


def source_problem(error: "SourceError") -> Problem:
    """A file that cannot be judged, as a problem."""
    return Problem(error.code, error.message, file=error.file, line=error.line, hint=error.hint)


def finding_problem(finding: "Finding") -> Problem:
    """A finding as a problem."""
    f = finding
    return Problem(f.id, f.message, file=f.file, line=f.line, column=f.column, field=f.field, hint=f.hint)


def finding_data(finding: "Finding") -> dict[str, object]:
    """A finding as data."""
    return {name: getattr(finding, name) for name in finding.__slots__}
