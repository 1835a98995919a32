"""`narwhal logs`: what a router or an engine has written, wherever it runs."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from narwhal.cli.app import Format, FormatOption, verb
from narwhal.cli.gatewords import DirectoryOption, deploy_errors, opened_run
from narwhal.cli.output import CommandError, Problem, Result
from narwhal.cli.spans import seconds_of

if TYPE_CHECKING:
    from narwhal.diagnose.logs import Wish

_READ_S = 60.0


@verb("logs", short_help="Show what a router or an engine has written.")
def logs(
    name: Annotated[str, typer.Argument(help="router, standby, or an engine: HOST/N.")],
    fleet: Annotated[
        Path | None,
        typer.Option("--fleet", metavar="FILE", help="A deployed fleet; default: the dev instance or demo."),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")] = False,
    since: Annotated[str | None, typer.Option("--since", metavar="SPAN", help="Of the last 90s, 10m, 2h.")] = None,
    lines: Annotated[
        int | None, typer.Option("--lines", "-n", min=1, help="Last lines; default: 100, with --since all.")
    ] = None,
    output: DirectoryOption = None,
    format: FormatOption = Format.text,
) -> Result:
    """Show the log of a router or an engine: a dev instance's file, or the unit's journal on its host, over SSH.

    Host keys must be pinned or confirmed, as for `narwhal deploy`. Ctrl-C ends what runs on the host too.

    Example: narwhal logs router --fleet fleet.yaml --since 10m

    Example: narwhal logs gpu-1/0 --fleet fleet.yaml -f
    """
    from narwhal.diagnose.logs import Wish, show

    as_json = format is Format.json
    if as_json and follow:
        raise CommandError(Problem("usage", "one document cannot go on for ever", hint="leave -f or --format out"))
    wish = Wish(lines, seconds_of(since) if since else None, follow)
    with _command(name, fleet, output, wish) as (argv, where):
        if as_json:
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_READ_S)
            code, read = done.returncode, done.stdout.splitlines()
        else:
            code, read = show(argv), []
    if code:
        hint = "is the host up, and may you read its journal (root, sudo without password, group systemd-journal)?"
        raise CommandError(Problem("logs", f"{where}: the command ended with {code}", hint=hint), status="failed")
    return Result(data={"name": name, "where": where, "lines": read})


@contextmanager
def _command(name: str, fleet: Path | None, output: Path | None, wish: "Wish") -> Iterator[tuple[list[str], str]]:
    """The command that shows a log, and where it is."""
    from narwhal.deploy import reaching
    from narwhal.diagnose.logs import NoLogError, command, file_script, place_of, unit_script

    instance = None if fleet is not None and not (fleet.parent / "instance.json").exists() else _here(fleet)
    if instance is not None:
        file = _file(instance, name)
        yield command([], file_script(file, wish)), str(file)
        return
    if fleet is None:
        hint = "narwhal dev up, narwhal demo, or --fleet FILE for a deployed fleet"
        raise CommandError(Problem("no_fleet", "no fleet is named, and none runs on this machine", hint=hint))
    opened = opened_run(fleet, output)
    try:
        place = place_of(name, opened.wanted.expanded)
    except NoLogError as error:
        raise CommandError(Problem("name", str(error), hint="name one of these")) from None
    with deploy_errors(), reaching(opened) as reach:
        yield command(reach(place.host), unit_script(place.unit, wish)), f"{place.unit} on {place.host}"


def _here(fleet: Path | None) -> Path | None:
    """The folder of the dev instance that is meant, else of a demo that runs."""
    from narwhal.dev import Instance, default_directory, running_demo

    if fleet is not None:
        return fleet.parent
    default = Instance(default_directory(os.environ))
    return default.path if default.exists else running_demo()


def _file(folder: Path, name: str) -> Path:
    """The log of one of an instance's processes."""
    from narwhal.dev import Instance

    files = {file.stem: file for file in sorted(Instance(folder).log.glob("*.log"))}
    wanted = name.replace("/", "-")
    if wanted not in files:
        there = ", ".join(files) or "none yet: narwhal dev up"
        raise CommandError(
            Problem("name", f"no process of this instance is called {name!r}", hint=f"there are {there}")
        )
    return files[wanted]
