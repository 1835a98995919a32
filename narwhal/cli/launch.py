"""`narwhal engine render`, `check`, `run`, `attest`, `examine`, `digest`: an engine, from fleet file to identity."""

import os
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from narwhal.cli.app import progress, verb
from narwhal.cli.engine import group
from narwhal.cli.output import CommandError, Problem, Result
from narwhal.cli.validate import finding_problem, source_problem

if TYPE_CHECKING:
    from narwhal.engine.checks import Check
    from narwhal.engine.record import EngineLaunch

LaunchOption = Annotated[str, typer.Option("--launch", metavar="FILE", help="The engine's launch record.")]
SkipOption = Annotated[list[str] | None, typer.Option("--skip", help="A check to leave out; may be repeated.")]


@verb("render", group=group, short_help="Print the launch record of an engine of a fleet file.")
def render(
    fleet: Annotated[str, typer.Argument(help="Fleet file.")],
    engine: Annotated[str, typer.Argument(help="Id of the engine, such as gpu-1/0.")],
    output: Annotated[str | None, typer.Option("--output", "-o", help="File to write; default: print it.")] = None,
) -> Result:
    """Print the launch record of one engine: its command, environment, ports and digests.

    Example: narwhal engine render fleet.yaml gpu-1/0 -o gpu-1-0.json
    """
    from narwhal.engine.record import write_launch
    from narwhal.engine.render import render_launch
    from narwhal.fleet import FleetError, SourceError, open_fleet

    try:
        expanded = open_fleet(fleet)
        launch = render_launch(expanded, expanded.engine(engine))
    except FleetError as error:
        raise CommandError(*map(finding_problem, error.findings), status="findings") from None
    except SourceError as error:
        raise CommandError(source_problem(error)) from None
    except KeyError:
        problem = Problem("unknown_engine", f"{fleet} has no engine {engine!r}", hint=f"narwhal show {fleet} --engines")
        raise CommandError(problem) from None
    except ValueError as error:
        raise CommandError(Problem("engine_launch", str(error), hint="remove its url to start it here")) from None
    data = {"launch": launch.model_dump(mode="json", by_alias=True), "digest": launch.digest()}
    if output is None:
        return Result(data=data, text=launch.text())
    write_launch(launch, Path(output))
    return Result(data=data, artifacts=[output], text=f"{output}: {launch.digest()}")


@verb("check", group=group, short_help="Check that an engine could be started here; starts nothing.")
def check(launch: LaunchOption, skip: SkipOption = None) -> Result:
    """Check executable, packages, connector, model, ports, GPUs and secrets of a launch record. Starts nothing.

    Exit code: 0 all ok, 1 a check failed, 3 a warning.

    Example: narwhal engine check --launch gpu-1-0.json
    """
    from narwhal.engine.checks import check_launch

    checks = check_launch(_read(launch), leave_out=_known(skip))
    statuses = {check.status for check in checks}
    status = "findings" if "FAIL" in statuses else "degraded" if "WARN" in statuses else "success"
    return Result(status, data={"checks": [_data(check) for check in checks]}, text="\n".join(map(_line, checks)))


@verb("run", group=group, short_help="Start an engine from its launch record, in this process.")
def run(launch: LaunchOption, skip: SkipOption = None) -> Result:
    """Check a launch record, then become the engine: the process id stays.

    Each start has a UUID of its own; the engine serves it as a model name, by which the router tells generations apart.
    The connector is not checked, as the engine imports it a moment later.

    Example: narwhal engine run --launch gpu-1-0.json
    """
    from narwhal.engine.checks import SLOW, check_launch
    from narwhal.engine.record import LaunchError
    from narwhal.engine.starting import start_argv, start_environment

    record = _read(launch)
    failed = []
    for found in check_launch(record, leave_out=[*SLOW, *_known(skip)]):
        progress().say(_line(found))
        if found.status == "FAIL":
            failed.append(Problem(f"check_{found.name}", found.reason, file=launch, hint=found.next_step))
    if failed:
        raise CommandError(*failed, status="failed")
    generation = str(uuid.uuid4())
    try:
        argv, environment = start_argv(record, generation), start_environment(record, os.environ)
    except LaunchError as error:
        raise CommandError(Problem("engine_launch", str(error), file=launch), status="failed") from None
    progress().say(f"{record.engine} starts as generation {generation} of {record.digest()}")
    sys.stdout.flush()
    os.execvpe(argv[0], argv, environment)  # noqa: S606 - becoming the engine is the point


@verb("attest", group=group, short_help="Serve the identity of a running engine.")
def attest(
    launch: LaunchOption,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port to serve on; default: the record's; 0: any.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to serve on; default: the engine's.")] = None,
) -> Result:
    """Serve `GET /attestation`: process, generation, packages, model, connector and KV cache of a running engine.

    It runs beside the engine as the same user, until it is stopped, and takes under 30 MB.

    Example: narwhal engine attest --launch gpu-1-0.json
    """
    record = _read(launch)
    argv = [sys.executable, "-m", "narwhal.engine.sidecar", launch, host or record.host]
    argv.append(str(record.attest_port if port is None else port))
    os.execv(sys.executable, argv)  # noqa: S606 - a program of its own, so that nothing else stays in memory


@verb("examine", group=group, short_help="Examine a running engine: health, model, one answer, its cache.")
def examine(
    launch: LaunchOption,
    deadline_s: Annotated[float, typer.Option(min=0, help="How long to wait for its health, in seconds.")] = 60.0,
    unit: Annotated[
        str | None, typer.Option("--unit", metavar="UNIT", help="systemd's unit of it: wait no longer once it failed.")
    ] = None,
) -> Result:
    """Wait for an engine's health, ask it for the same answer twice, and tell who it is and what cache it has.

    It asks from the engine's own host, with the key of its launch record. Exit code: 4 when it does not serve as it
    should.

    Example: narwhal engine examine --launch gpu-1-0.json --deadline-s 600
    """
    from narwhal.engine.examine import ExamineError, examine
    from narwhal.engine.record import LaunchError
    from narwhal.engine.unit import Unit

    record = _read(launch)
    try:
        found = examine(record, deadline_s=deadline_s, unit=Unit(unit) if unit else None)
    except ExamineError as error:
        raise CommandError(Problem("engine_examine", str(error), hint=error.next_step), status="failed") from None
    except LaunchError as error:
        raise CommandError(Problem("engine_launch", str(error), file=launch), status="failed") from None
    seen = found.attestation
    cache = seen["cache"]
    text = (
        f"{found.engine} is version {seen['version']}, generation {seen['generation']}; "
        f"cache: {cache['blocks']} blocks of {cache['block_tokens']} tokens"
    )
    return Result(data=found.data(), text=text)


@verb("digest", group=group, short_help="Print the digest of a model's directory.")
def digest(folder: Annotated[str, typer.Argument(help="Directory of the checkpoint.")]) -> Result:
    """Print the digest of a model's directory, for `model.digest` of the fleet file.

    Example: narwhal engine digest /models/qwen3-8b
    """
    from narwhal.engine.tree import tree_digest

    found = tree_digest(Path(folder))
    return Result(data={"path": folder, "digest": found}, text=found)


def _read(path: str) -> "EngineLaunch":
    from narwhal.engine.record import LaunchError, read_launch

    try:
        return read_launch(Path(path))
    except LaunchError as error:
        hint = "narwhal engine render FLEET ENGINE -o FILE"
        raise CommandError(Problem("engine_launch", str(error), file=path, hint=hint)) from None


def _known(skip: list[str] | None) -> list[str]:
    from narwhal.engine.checks import CHECKS

    for name in skip or ():
        if name not in CHECKS:
            raise CommandError(Problem("usage", f"there is no check {name!r}", hint=f"one of {', '.join(CHECKS)}"))
    return skip or []


def _data(check: "Check") -> dict[str, str]:
    return {name: getattr(check, name) for name in check.__slots__}


def _line(check: "Check") -> str:
    step = f"\n     next: {check.next_step}" if check.next_step else ""
    return f"{check.status:4} {check.name}: {check.reason}{step}"
