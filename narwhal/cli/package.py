"""`narwhal package`: one bundle for all hosts, whose digest is the fleet's revision."""

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from narwhal.cli.app import progress, verb
from narwhal.cli.gatewords import FleetArgument, deploy_errors, opened_run
from narwhal.cli.output import CommandError, Problem, Result


class Machine(StrEnum):
    """What the hosts are."""

    x86_64 = "x86_64"
    aarch64 = "aarch64"


@verb("package", short_help="Make the bundle that gate B installs, and its revision.")
def package(
    fleet: FleetArgument,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Default: run/NAME/bundle.tar, where deploy looks."),
    ] = None,
    write: Annotated[
        bool, typer.Option("--write", help="Approve it: write metadata.revision into the fleet file.")
    ] = False,
    with_engine: Annotated[
        bool, typer.Option("--with-engine", help="Put the engine's package in too (engines.runtime.package).")
    ] = False,
    wheelhouse: Annotated[
        Path | None, typer.Option("--wheelhouse", metavar="DIR", help="Take wheels from DIR; nothing is downloaded.")
    ] = None,
    machine: Annotated[Machine | None, typer.Option("--machine", help="Of the hosts; default: this one's.")] = None,
) -> Result:
    """Make one bundle: Narwhal's own wheel and every wheel it needs, with hashes, for the Python of the hosts.

    The Python is `metadata.python`, else this one's. The same wheels make the same bytes, and their digest is the
    revision: with --write it is put into the fleet file, where comments and all else stay as they are. Hosts need no
    internet. A checkout is built; an installed narwhal packages itself.

    Example: narwhal package fleet.yaml --write
    """
    from narwhal.deploy import BundleWish, Source, approve, default_wish, make_bundle

    opened = opened_run(fleet, None)
    runtime = opened.wanted.fleet.engines.runtime
    if with_engine and runtime.kind != "venv":
        hint = "leave --with-engine out"
        raise CommandError(
            Problem("engine", f"the runtime is {runtime.kind}: it has no package", str(fleet), hint=hint)
        )
    target = default_wish(opened.declared).target
    target = replace(target, machine=str(machine)) if machine else target
    engine = runtime.package if with_engine and runtime.kind == "venv" else None
    path = output or opened.bundle
    with deploy_errors():
        revision = make_bundle(BundleWish(target, Source(wheelhouse), engine), path, progress().say)
        said = approve(opened, revision, write=write, deployed=output is None)
    data = {
        "bundle": str(path),
        "revision": revision,
        "python": target.python,
        "machine": target.machine,
        "engine": engine,
    }
    text = (
        f"{path}: {path.stat().st_size / 1e6:.1f} MB for Python {target.python} on {target.machine}\n{revision}\n{said}"
    )
    return Result(data=data, artifacts=[str(path), *([str(fleet)] if write else [])], text=text)
