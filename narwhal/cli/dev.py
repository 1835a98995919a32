"""`narwhal dev`: a fleet on this one machine."""

import os
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from narwhal.cli.app import app, progress, verb
from narwhal.cli.output import CommandError, Problem, Result

if TYPE_CHECKING:
    from narwhal.dev import DevError, Instance

group = typer.Typer(
    name="dev",
    help="A fleet on this one machine: init, up, verify, status, down.\n\n"
    "Example: narwhal dev init && narwhal dev up && narwhal dev verify",
    short_help="A fleet on this one machine: init, up, verify, status, down.",
    no_args_is_help=True,
)
app.add_typer(group)

DirOption = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        metavar="FOLDER",
        help="Instance directory; default: dev/default in $NARWHAL_HOME or ~/.local/share/narwhal.",
    ),
]


@contextmanager
def _instance(directory: Path | None) -> "Iterator[Instance]":
    """The instance that is meant, with dev mode's errors as the command's."""
    from narwhal.dev import DevError, Instance, default_directory

    try:
        yield Instance((directory or default_directory(os.environ)).absolute())
    except DevError as error:
        raise CommandError(_problem(error, directory), status="failed" if error.failed else "unusable") from None


def _problem(error: "DevError", directory: Path | None) -> Problem:
    hint = error.hint if error.hint is None else _with_dir(error.hint, directory)
    return Problem(error.code, error.message, file=error.file, hint=hint)


def _with_dir(text: str, directory: Path | None) -> str:
    """The `narwhal dev` commands in a text, for the instance that was meant: what is copied works."""
    if directory is None:
        return text
    return re.sub(r"narwhal dev (init|up|verify|status|down)", rf"\g<0> --dir {shlex.quote(str(directory))}", text)


@verb("init", group=group)
def init(
    template: Annotated[
        str | None,
        typer.Option(help="simulated, cpu, small-cuda, rtx-5090 or h200; default: by this machine's GPU."),
    ] = None,
    engines: Annotated[
        int | None, typer.Option("--engines", min=2, max=8, help="Number of engines; default: the template's.")
    ] = None,
    port: Annotated[int | None, typer.Option("--port", min=1, max=65535, help="Port for clients.")] = None,
    model: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Model directory; cpu makes a tiny one without it.")
    ] = None,
    environment: Annotated[
        Path | None,
        typer.Option(metavar="VENV", help="Virtual environment with vLLM and NIXL; cpu makes one without it."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an instance that is not running.")] = False,
    directory: DirOption = None,
) -> Result:
    """Make an instance: a directory with a fleet file of one's own.

    cpu starts real vLLM on this machine's CPU, in an environment that it installs (2.4 GB); small-cuda takes at most
    8 GB of one GPU. A template for a GPU needs --model, and vLLM beside narwhal or in --environment.

    Example: narwhal dev init --engines 4

    Example: narwhal dev init --template h200 --model /models/llama-8b
    """
    from narwhal.dev.create import Wish, create

    wish = Wish(template, engines, port, model, environment, force)
    with _instance(directory) as instance:
        made = create(instance, wish, progress().say)
    text = f"{made.why}\nwrote {instance.fleet}: {made.engines} engines, clients on port {made.port}"
    return Result(
        data={"dir": str(instance.path), "template": made.template, "engines": made.engines, "port": made.port},
        artifacts=[str(instance.fleet)],
        text=_with_dir(f"{text}\nnext: narwhal dev up", directory),
    )


@verb("up", group=group, short_help="Start what is missing and wait until it is ready.")
def up(directory: DirOption = None) -> Result:
    """Start the engines and the router, and wait until they are ready; what runs already is kept.

    Example: narwhal dev up
    """
    from narwhal.dev.lifecycle import up as bring_up
    from narwhal.dev.report import curl_line

    with _instance(directory) as instance:
        result = bring_up(instance, progress().say)
        model = instance.expanded().fleet.model.name
    text = f"{'up' if result.started else 'already up'}: {result.url} for clients, {result.admin_url} for operators"
    if result.standby:
        text += f"\nthe standby is yours to start: {shlex.join(result.standby)}"
    return Result(
        data={
            "url": result.url,
            "admin_url": result.admin_url,
            "started": list(result.started),
            "stopped": list(result.stopped),
            "already_up": not result.started,
        },
        text=_with_dir(f"{text}\nnext: narwhal dev verify; or {curl_line(result.url, model)}", directory),
    )


@verb("verify", group=group, short_help="Prove engines, KV over every pair, and routed answers.")
def verify(directory: DirOption = None) -> Result:
    """Prove that every engine answers, that KV moves over every pair, and that routed answers equal local ones.

    Example: narwhal dev verify
    """
    from dataclasses import asdict

    from narwhal.dev.lifecycle import client_url, require_up
    from narwhal.dev.verify import verify as look

    with _instance(directory) as instance:
        expanded = require_up(instance)
        checks = look(expanded, client_url(expanded))
    failed = [check for check in checks if not check.passed]
    return Result(
        status="findings" if failed else "success",
        data={"checks": [asdict(check) for check in checks], "passed": not failed},
        errors=[
            Problem("verify", f"{check.name}: {check.detail}", hint=_with_dir("narwhal dev status", directory))
            for check in failed
        ],
        text="\n".join(f"{'ok    ' if check.passed else 'FAILED'} {check.name}" for check in checks),
    )


@verb("status", group=group, short_help="Show each process: ready, starting, outdated, dead, …")
def status(directory: DirOption = None) -> Result:
    """Show each process of the instance: ready, starting, standby, not answering, outdated, dead or stopped.

    Standby: another router leads. Not answering: it takes connections and says nothing, as a process under SIGSTOP.
    Outdated is what still runs from a former text of the fleet file; `narwhal dev up` replaces it.

    Example: narwhal dev status
    """
    from narwhal.dev import DevError
    from narwhal.dev.lifecycle import lease_trouble, recorded_states, states

    with _instance(directory) as instance:
        try:
            rows = states(instance)
        except DevError as error:
            if not (rows := recorded_states(instance)):
                raise
            return _standing(rows, "unusable", [_problem(error, directory)], "repair the fleet file")
    all_ready = "narwhal status" if directory is None else f"narwhal status --fleet {shlex.quote(str(instance.fleet))}"
    up_again = _with_dir("narwhal dev up", directory)
    if any(row["state"] == "standby" for row in rows) and (trouble := lease_trouble(instance)):
        problem = Problem("not_ready", f"the router stands by: {trouble}", hint=_with_dir("narwhal dev up", directory))
        return _standing(rows, "degraded", [problem], all_ready)
    if all(row["state"] in ("ready", "standby") for row in rows):
        return _standing(rows, "success", [], all_ready)
    if silent := [str(row["pid"]) for row in rows if row["state"] == "not answering"]:
        return _standing(rows, "degraded", [], f"kill -KILL {' '.join(silent)}, then {up_again}")
    outdated = ", ".join(row["name"] for row in rows if row["state"] == "outdated")
    changed = Problem("outdated", f"{instance.fleet} has changed since these started: {outdated}", hint=up_again)
    return _standing(rows, "degraded", [changed] if outdated else [], up_again)


def _standing(rows: list[dict[str, Any]], status: str, errors: list[Problem], next_step: str) -> Result:
    lines = [
        f"{row['name']:<16}{row['state']:<14}{row['pid'] or '–':>8}  {row['url'] or '–':<28}{row['log']}"
        for row in rows
    ]
    return Result(
        status=status,
        data={"processes": rows, "ready": sum(row["state"] == "ready" for row in rows)},
        errors=errors,
        text="\n".join([*lines, f"next: {next_step}"]),
    )


@verb("down", group=group)
def down(directory: DirOption = None) -> Result:
    """Stop the processes of the instance, and no other.

    Example: narwhal dev down
    """
    from narwhal.dev.lifecycle import down as take_down

    with _instance(directory) as instance:
        stopped = take_down(instance)
    text = f"stopped {', '.join(stopped)}" if stopped else "nothing was running"
    return Result(data={"stopped": stopped}, text=text)
