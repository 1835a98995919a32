"""`narwhal roll`, `rollback`, `stop` and `purge`: what comes after the first day."""

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from narwhal.cli.app import progress, verb
from narwhal.cli.deploy import (
    LimitOption,
    TakeLockOption,
    VaultOption,
    YesOption,
    as_ctrl_c,
    ask,
    check_limit,
    failed,
    prepared,
)
from narwhal.cli.gatewords import DirectoryOption, FleetArgument, deploy_errors, opened_run
from narwhal.cli.hostkeys import AcceptOption
from narwhal.cli.output import CommandError, Problem, Result

if TYPE_CHECKING:
    from narwhal.deploy import Opened


@verb("roll", short_help="Upgrade a serving fleet, one host at a time.")
def roll(
    fleet: FleetArgument,
    limit: LimitOption = None,
    yes: YesOption = False,
    output: DirectoryOption = None,
    accept_host_key: AcceptOption = None,
    take_lock: TakeLockOption = False,
    vars_file: VaultOption = None,
) -> Result:
    """Drain, upgrade and readmit one host at a time, while the fleet serves; stop at the first bad host.

    It brings the approved revision and the launch records of the fleet file. Exit code: 0 rolled, 1 it stopped, 2 it
    could not begin, 130 Ctrl-C.

    Example: narwhal package fleet.yaml --write && narwhal roll fleet.yaml
    """
    return _day("roll", fleet, output, limit, yes, accept_host_key, take_lock, vars_file)


@verb("rollback", short_help="Bring the revision back that ran before.")
def rollback(
    fleet: FleetArgument,
    limit: LimitOption = None,
    yes: YesOption = False,
    output: DirectoryOption = None,
    accept_host_key: AcceptOption = None,
    take_lock: TakeLockOption = False,
    vars_file: VaultOption = None,
) -> Result:
    """Bring back the last good revision with its launch records, one host at a time.

    Example: narwhal rollback fleet.yaml
    """
    return _day("rollback", fleet, output, limit, yes, accept_host_key, take_lock, vars_file)


@verb("stop", short_help="Stop routers and engines of a fleet.")
def stop(
    fleet: FleetArgument,
    limit: LimitOption = None,
    yes: YesOption = False,
    output: DirectoryOption = None,
    accept_host_key: AcceptOption = None,
    take_lock: TakeLockOption = False,
    vars_file: VaultOption = None,
) -> Result:
    """Stop routers and engines on all hosts; `narwhal deploy` starts them again.

    Example: narwhal stop fleet.yaml --limit gpu-3
    """
    return _day("stop", fleet, output, limit, yes, accept_host_key, take_lock, vars_file)


@verb("purge", short_help="Remove a fleet from its hosts.")
def purge(
    fleet: FleetArgument,
    confirm: Annotated[
        str | None, typer.Option("--confirm", metavar="NAME", help="The fleet's name, instead of being asked for it.")
    ] = None,
    limit: LimitOption = None,
    output: DirectoryOption = None,
    accept_host_key: AcceptOption = None,
    take_lock: TakeLockOption = False,
    vars_file: VaultOption = None,
) -> Result:
    """Stop everything and remove what gate B installed: revisions, units, state, user. Models stay.

    It asks for the fleet's name.

    Example: narwhal purge fleet.yaml --confirm lab
    """
    opened = opened_run(fleet, output)
    name = opened.declared.metadata.name
    if confirm is None and sys.stdin.isatty():
        confirm = typer.prompt(
            f"Type the name of the fleet to remove it from {len(opened.declared.hosts)} hosts", err=True
        )
    if confirm != name:
        raise CommandError(Problem("confirm", f"{confirm!r} is not the name of the fleet", hint=f"--confirm {name}"))
    return _day("purge", fleet, output, limit, True, accept_host_key, take_lock, vars_file)


def _day(
    name: str,
    fleet: Path,
    output: Path | None,
    limit: list[str] | None,
    yes: bool,
    accepted: list[str] | None,
    take_lock: bool,
    vars_file: Path | None,
) -> Result:
    from narwhal.deploy import Choice, day_of, locked, run_day

    signal.signal(signal.SIGTERM, as_ctrl_c)
    day = day_of(name)
    choice = Choice(limit=tuple(limit or ()), take_lock=take_lock, vault=vars_file)
    opened: Opened = opened_run(fleet, output)
    check_limit(opened, choice)
    with deploy_errors(), locked(opened.directory, name):
        opened = prepared(opened, accepted or [])
        progress().say(f"{name} of fleet {opened.declared.metadata.name}: {day.does}")
        if not yes:
            ask()
        evidence, path = run_day(opened, day, choice, progress().say)
    if evidence.verdict != "passed":
        return failed(evidence, {"evidence": evidence.model_dump(mode="json", by_alias=True)}, [str(path)])
    changed = ", ".join(evidence.changed) or "no host"
    text = f"{name}: done; {changed} changed"
    if evidence.changed:
        text += f"\n{day.then.format(file=opened.file)}"
    return Result(data={"changed": evidence.changed}, artifacts=[str(path)], text=text)
