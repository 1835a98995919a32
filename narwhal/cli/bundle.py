"""`narwhal bundle`: what somebody else needs to understand an incident, without what is nobody else's business."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from narwhal.cli.admin import RouterOption, TokenFileOption, router_admin
from narwhal.cli.app import progress, verb
from narwhal.cli.output import CommandError, Problem, Result
from narwhal.cli.spans import seconds_of

if TYPE_CHECKING:
    from narwhal.dev import Instance
    from narwhal.diagnose.gather import Plan
    from narwhal.diagnose.manifest import BundledSource

_SECRET = 0o700


@verb("bundle", short_help="Collect what is needed to understand an incident.")
def bundle(
    fleet: Annotated[
        Path | None, typer.Argument(metavar="[FLEET]", help="Fleet file; default: the dev instance.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="PATH", help="The archive, or a folder (with a / at its end)."),
    ] = None,
    since: Annotated[str, typer.Option("--since", metavar="SPAN", help="How far back logs and journal go.")] = "30m",
    hosts: Annotated[
        bool, typer.Option("--hosts", help="Ask every host over SSH: its facts, its units' logs.")
    ] = False,
    journal: Annotated[
        Path | None, typer.Option("--journal", metavar="FOLDER", help="The journal of a router that does not answer.")
    ] = None,
    names: Annotated[bool, typer.Option("--with-names", help="Leave names of hosts, users, tenants in.")] = False,
    addresses: Annotated[bool, typer.Option("--with-addresses", help="Leave network addresses in.")] = False,
    messages: Annotated[
        bool, typer.Option("--with-messages", help="Leave whole messages of engines in: they may quote prompts.")
    ] = False,
    router: RouterOption = None,
    token_file: TokenFileOption = None,
) -> Result:
    """Collect state, metrics, journal, decisions, logs, fleet file, versions and host facts in one private archive.

    Secrets, prompts and outputs are out; names and addresses are replaced by pseudonyms, unless asked. What cannot be
    had is said, with the reason, and the rest is collected: exit code 3 then. Look at it before you send it.

    Example: narwhal bundle fleet.yaml --hosts -o incident/
    """
    from narwhal.diagnose.bundle import make_bundle
    from narwhal.diagnose.gather import sources
    from narwhal.diagnose.names import names_of_fleet, names_of_machine, secrets_of_fleet, secrets_of_machine
    from narwhal.diagnose.redact import Asked, Redactor

    file = _file(output)
    redactor = Redactor(Asked(names, addresses, messages))
    with _planned(fleet, router, token_file, hosts, seconds_of(since)) as plan:
        plan.journal = journal or plan.journal
        redactor.learn(names_of_machine() | names_of_fleet(plan.fleet_data), secrets_of_machine())
        redactor.learn({}, secrets_of_fleet(plan.fleet_data) | _token(token_file))
        wanted = sources(plan)
        progress().say(f"collecting {len(wanted)} sources")
        manifest = make_bundle(wanted, redactor, file, plan.since_s)
    lines = [f"{file}: {sum(source.file is not None for source in manifest.sources)} files, readable by you alone"]
    lines += [_line(source) for source in manifest.sources if source.outcome != "collected"]
    data = manifest.model_dump(by_alias=True, mode="json")
    status = "success" if manifest.complete else "degraded"
    return Result(status, data, artifacts=[str(file)], text="\n".join(lines))


def _line(source: "BundledSource") -> str:
    return f"  {source.outcome:<9}{source.name}: {source.reason}"


def _file(output: Path | None) -> Path:
    """Where the archive goes; its folder is made, for its owner alone."""
    name = f"narwhal-bundle-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.tar.gz"
    folder = output is None or output.is_dir() or str(output).endswith("/") or output.suffix == ""
    file = (output or Path()) / name if folder else output
    assert file is not None
    if file.exists():
        raise CommandError(Problem("exists", "there is a file already", file=str(file), hint="name another: -o FILE"))
    file.parent.mkdir(mode=_SECRET, parents=True, exist_ok=True)
    return file


def _token(file: Path | None) -> set[str]:
    try:
        return {file.read_text()} if file is not None else set()
    except (OSError, UnicodeDecodeError):
        return set()


@contextmanager
def _planned(
    fleet: Path | None, router: str | None, token_file: Path | None, hosts: bool, since_s: float
) -> "Iterator[Plan]":
    """What there is to collect from; whatever cannot be found is said in the plan, and ends nothing."""
    from narwhal.dev import Instance, default_directory
    from narwhal.diagnose.gather import Plan

    plan = Plan(since_s, over_ssh=hosts)
    instance = Instance(fleet.parent if fleet is not None else default_directory(os.environ))
    local = instance.exists and (router is None or fleet is not None)
    with ExitStack() as stack:
        path = fleet or (instance.fleet if local else None)
        if path is not None:
            _read_fleet(plan, path, stack)
        if local:
            _of_instance(plan, instance)
        try:
            plan.client = stack.enter_context(router_admin(router, path, token_file))
        except CommandError as error:
            plan.no_client = str(error)
        plan.journal = plan.journal or _journal(plan)
        yield plan


def _read_fleet(plan: "Plan", path: Path, stack: ExitStack) -> None:
    """The fleet file, whole or not, and the way to its hosts."""
    from narwhal.deploy import DeployError, open_run, reaching
    from narwhal.fleet import FleetError, SourceError, read_source

    try:
        plan.fleet_data = read_source(str(path)).data
        opened = open_run(path)
        plan.expanded, plan.reach = opened.wanted.expanded, stack.enter_context(reaching(opened))
    except FleetError as error:
        plan.fleet_problem = f"it is not valid ({len(error.findings)} findings): narwhal validate says why"
    except SourceError as error:
        plan.fleet_problem = error.message
    except DeployError as error:
        plan.fleet_problem = error.message


def _of_instance(plan: "Plan", instance: "Instance") -> None:
    """Logs and launch records of a dev instance."""
    files = {file.stem: file for file in sorted(instance.log.glob("*.log"))}
    engines = (
        {each.id.replace("/", "-"): each.id for each in plan.expanded.engines} if plan.expanded is not None else {}
    )
    plan.log_files = {engines.get(name, name): file for name, file in files.items()}
    plan.launches = {engines.get(file.stem, file.stem): file for file in sorted(instance.run.glob("*.launch"))}
    plan.journal = instance.state / "journal"


def _journal(plan: "Plan") -> Path | None:
    """The journal of a router that runs, or ran, on this machine; None: it is not to be seen here."""
    from narwhal.diagnose.history import journal_of
    from narwhal.fleet.places import admin_sockets

    if plan.client is not None and (found := journal_of(plan.client)) is not None:
        return found
    if plan.expanded is None:
        return None
    given = plan.expanded.fleet.observability.journal.path
    sockets = admin_sockets(plan.expanded, os.environ)
    folders = [Path(given)] if given else [socket.parent / "journal" for socket in sockets]
    return next((folder for folder in folders if (folder / "journal.jsonl").is_file()), None)
