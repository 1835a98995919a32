"""`narwhal observe`: Prometheus, its alerts, and Grafana's dashboards."""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from narwhal.cli.app import app, progress, verb
from narwhal.cli.gatewords import FleetArgument
from narwhal.cli.output import CommandError, Problem, Result
from narwhal.cli.validate import opened_fleet

if TYPE_CHECKING:
    from narwhal.observe import Running

group = typer.Typer(
    name="observe",
    help="Prometheus, alerts and dashboards of a fleet: render, up.\n\n"
    "Example: narwhal observe render fleet.yaml -o observe",
    short_help="Prometheus, alerts and dashboards of a fleet: render, up.",
    no_args_is_help=True,
)
app.add_typer(group)
_LOOK_S = 0.5


@verb("render", group=group, short_help="Write what Prometheus, Alertmanager and Grafana read.")
def render(
    fleet: FleetArgument,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Folder to write into.")],
) -> Result:
    """Write Prometheus' configuration and rules, an example for Alertmanager, runbooks, and Grafana's dashboards.

    Prometheus asks the routers what to scrape, so a change of the engines needs no new files.
    `observability.prometheus` of the fleet file says where its token is. The same file renders to the same bytes.

    Example: narwhal observe render fleet.yaml -o observe && promtool check config observe/prometheus.yml
    """
    from narwhal.observe import observe_files, write_files

    files = observe_files(opened_fleet(fleet))
    output.mkdir(parents=True, exist_ok=True)
    changed = write_files(output, files)
    data = {"directory": str(output), "files": list(files), "changed": changed}
    text = (
        f"{output}: {len(files)} files, {len(changed)} changed"
        if changed
        else f"{output}: {len(files)} files, none changed"
    )
    return Result(data=data, artifacts=[str(output)], text=text)


@verb("up", group=group, short_help="Run Prometheus and Alertmanager beside a router, until Ctrl-C.")
def up(
    fleet: Annotated[
        Path | None, typer.Argument(metavar="[FLEET]", help="Fleet file; default: that of the dev instance.")
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--dir", metavar="DIR", help="Where files, logs and data go; default: observe beside the fleet file."
        ),
    ] = None,
) -> Result:
    """Run the Prometheus and the Alertmanager that are on PATH, on loopback, with the files of a fleet, until Ctrl-C.

    They look at the routers where the fleet file says, so on another machine a tunnel has to be open. What they
    gathered stays in the folder. Exit code 130 after Ctrl-C, 3 where there is no prometheus.

    Example: narwhal dev up && narwhal observe up
    """
    from narwhal.dev import Instance, default_directory, ends_like_ctrl_c
    from narwhal.observe import UnavailableError, run

    if fleet is None:
        instance = Instance(default_directory(os.environ))
        if not instance.exists:
            hint = "give a fleet file, or: narwhal dev init && narwhal dev up"
            raise CommandError(Problem("no_fleet", "no fleet file is named, and there is no dev instance", hint=hint))
        fleet = instance.fleet
    expanded = opened_fleet(fleet)
    place = (folder or fleet.parent / "observe").absolute()
    place.mkdir(parents=True, exist_ok=True)
    try:
        with ends_like_ctrl_c(), run(expanded, place) as running:
            progress().say(_said(running))
            while not running.ended():
                time.sleep(_LOOK_S)
    except UnavailableError as error:
        raise CommandError(Problem("unavailable", str(error)), status="degraded") from None
    raise CommandError(Problem("ended", f"one of them ended; its log is in {place}"), status="failed")


def _said(running: "Running") -> str:
    lines = [f"prometheus    {running.prometheus_url}  (alerts: {running.prometheus_url}/alerts)"]
    lines.append(f"alertmanager  {running.alertmanager_url or 'there is none on PATH: alerts reach nobody'}")
    return "\n".join([*lines, f"files         {running.folder}", "Ctrl-C ends both"])
