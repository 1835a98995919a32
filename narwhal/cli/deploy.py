"""`narwhal deploy` and `narwhal gates`: the gates in order, and how each stands."""

import signal
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from narwhal.cli.app import progress, verb
from narwhal.cli.gatewords import DirectoryOption, FleetArgument, deploy_errors, opened_run
from narwhal.cli.hostkeys import AcceptOption, confirmed_keys
from narwhal.cli.output import CommandError, Problem, Result

if TYPE_CHECKING:
    from narwhal.deploy import Choice, GateEvidence, Opened, Outcome, Standing, Stop

GateOption = Annotated[str | None, typer.Option("--through", metavar="GATE", help="Stop after this gate: A to G.")]
LimitOption = Annotated[
    list[str] | None, typer.Option("--limit", metavar="HOST", help="Only this host; may be repeated.")
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before it starts.")]
VaultOption = Annotated[
    Path | None,
    typer.Option("--vars", metavar="FILE", help="Variables for Ansible, such as passwords encrypted by ansible-vault."),
]
TakeLockOption = Annotated[
    bool, typer.Option("--take-lock", help="Take over the lock that another operator left on the hosts.")
]


@verb("deploy", short_help="Take a fleet through the gates A to G, from where it stands.")
def deploy(
    fleet: FleetArgument,
    through: GateOption = None,
    only: Annotated[
        str | None, typer.Option("--only", metavar="GATE", help="Run this gate alone, even if it passed.")
    ] = None,
    limit: LimitOption = None,
    check: Annotated[bool, typer.Option("--check", help="Say what each gate would change; change nothing.")] = False,
    yes: YesOption = False,
    output: DirectoryOption = None,
    accept_host_key: AcceptOption = None,
    take_lock: TakeLockOption = False,
    vars_file: VaultOption = None,
    load: Annotated[
        str | None,
        typer.Option(
            "--load",
            metavar="COMMAND",
            help="Gate G runs it through the tunnel; it must exit 0. Default: the fleet file's benchmark.",
        ),
    ] = None,
) -> Result:
    """Render the fleet and run each gate that has to, in order; stop at the first that does not pass.

    A gate whose evidence is fresh is passed over, so the same command goes on where the last one stopped. What will
    be done, and why, is said first. Evidence: run/NAME/evidence/GATE/TIME. A password for sudo comes from
    NARWHAL_BECOME_PASSWORD or --vars. Exit code: 0 passed, 1 a gate did not pass, 2 it could not begin, 130 Ctrl-C.

    Example: narwhal deploy fleet.yaml

    Example: narwhal deploy fleet.yaml --through C --limit gpu-2
    """
    from narwhal.deploy import Choice, locked

    signal.signal(signal.SIGTERM, as_ctrl_c)
    choice = Choice(_letter(through), _letter(only), tuple(limit or ()), take_lock, vars_file, load)
    opened = opened_run(fleet, output)
    check_limit(opened, choice)
    with deploy_errors(), locked(opened.directory, "deploy"):
        opened = prepared(opened, accept_host_key or [])
        return _dry(opened, choice) if check else _deploy(opened, choice, yes=yes)


@verb("gates", short_help="How each gate stands: passed, stale and because of what, failed.")
def gates(fleet: FleetArgument, output: DirectoryOption = None) -> Result:
    """Show how each gate stands against the fleet file as it is now. Contacts nothing.

    Exit code: 0 all passed, 1 one is stale, failed or never ran.

    Example: narwhal gates fleet.yaml
    """
    from narwhal.deploy import standings_of

    opened = opened_run(fleet, output)
    with deploy_errors():
        found = standings_of(opened)
    status = "success" if all(one.fresh for one in found) else "findings"
    return Result(status, {"gates": [_data(one) for one in found]}, text="\n".join(map(_line, found)))


def prepared(opened: "Opened", accepted: list[str]) -> "Opened":
    """A run that can begin: host keys known, a bundle there or approved, the directory rendered."""
    from narwhal.deploy import changes, confirm, open_run, unpinned, write_directory

    unknown = {host.name: host.ssh for host in unpinned(opened) if host.ssh}
    if unknown:
        confirm(opened, confirmed_keys(unknown, accepted))
    opened = open_run(opened.file, opened.directory)
    if opened.wanted.fleet.metadata.revision is None:
        opened = _packaged(opened)
    write_directory(opened.directory, changes(opened.wanted, opened.directory))
    return opened


def _packaged(opened: "Opened") -> "Opened":
    """Make a bundle for a fleet file that approves none; `frozen.json` keeps its digest."""
    from narwhal.deploy import approve, default_wish, make_bundle, open_run

    progress().say(f"{opened.file} approves no revision: packaging narwhal as it is here")
    revision = make_bundle(default_wish(opened.declared), opened.bundle, progress().say)
    approve(opened, revision, write=False, deployed=True)
    return open_run(opened.file, opened.directory)


def _deploy(opened: "Opened", choice: "Choice", *, yes: bool) -> Result:
    from narwhal.deploy import deploy, standings_of, to_run

    plan = to_run(choice, standings_of(opened))
    for line in _plan_lines(opened, choice, plan):
        progress().say(line)
    if plan and not yes:
        ask()
    again = f"narwhal deploy {opened.file}"
    return _result(opened, deploy(opened, choice, progress().say, again))


def _dry(opened: "Opened", choice: "Choice") -> Result:
    from narwhal.deploy import dry_run, standings_of, to_run

    stop = dry_run(opened, choice, to_run(choice, standings_of(opened)), progress().say)
    if stop is None:
        return Result(data={"stopped": None}, text="nothing was changed; what would be is said above")
    raise dry_run_stopped(stop, {"stopped": {"host": stop.host, "task": stop.task, "message": stop.message}})


def dry_run_stopped(stop: "Stop", data: dict[str, Any]) -> CommandError:
    """A dry run that met something which would fail, or cannot be foreseen."""
    hint = "a gate that builds on what an earlier one would install cannot be foreseen before that did"
    place = ": ".join(part for part in (stop.host, stop.task) if part)
    return CommandError(Problem("check", f"{place}: {stop.message}", hint=hint), status="findings", data=data)


def _plan_lines(opened: "Opened", choice: "Choice", plan: "list[Standing]") -> list[str]:
    fleet = opened.wanted.fleet
    name = f"fleet {fleet.metadata.name}, revision {(fleet.metadata.revision or '')[:19]}"
    if not plan:
        return [f"{name}: nothing to do"]
    lines = [f"{name}: gates {', '.join(one.gate.letter for one in plan)} are to run"]
    for one in plan:
        where = ", ".join(choice.limit or one.hosts or ()) or "all hosts"
        lines.append(f"  {one.gate.title:<12} on {where}: {one.reason}")
    if any(one.gate.letter == "C" and one.restarts for one in plan):
        lines += [
            "  gate C restarts engines whose launch changed, all at once, and requests on them fail;",
            f"  `narwhal roll {opened.file}` does it a host at a time, drained first, while the fleet serves",
        ]
    return lines


def ask() -> None:
    """Ask whether to go on; nobody there is a no."""
    if not sys.stdin.isatty():
        raise CommandError(Problem("ask", "nobody is there to say yes", hint="--yes starts it without asking"))
    if not typer.confirm("Go on?", err=True):
        raise CommandError(Problem("ask", "nothing was done", hint="narwhal diff says what would change"))


def _result(opened: "Opened", outcome: "Outcome") -> Result:
    data: dict[str, Any] = {
        "passed": outcome.passed,
        "passed_over": outcome.passed_over,
        "directory": str(opened.directory),
        "stopped": outcome.stopped and outcome.stopped.model_dump(mode="json", by_alias=True),
    }
    if outcome.stopped is None:
        ran = f"passed: {', '.join(outcome.passed)}" if outcome.passed else "nothing had to run"
        return Result(data=data, artifacts=outcome.artifacts, text=ran)
    return failed(outcome.stopped, data, outcome.artifacts)


def failed(evidence: "GateEvidence", data: dict[str, Any], artifacts: list[str]) -> Result:
    """A run that did not pass: host, task, reason and the next command."""
    failure = evidence.failure
    assert failure is not None
    is_gate = evidence.gate[1:2] == "-"
    place = ": ".join(part for part in (failure.host, failure.task) if part)
    what = f"gate {evidence.gate}" if is_gate else evidence.gate
    said = what if evidence.verdict == "interrupted" else f"{what} {evidence.verdict}"
    text = f"{said}: {f'{place}: ' if place else ''}{failure.message}"
    problem = Problem(f"gate_{evidence.gate[0]}" if is_gate else evidence.gate, text, hint=failure.next_step)
    status = "interrupted" if evidence.verdict == "interrupted" else "findings"
    return Result(status, data, artifacts, [problem])


def _line(one: "Standing") -> str:
    return f"{one.gate.title:<12} {one.state:<7} {one.reason}"


def _data(one: "Standing") -> dict[str, Any]:
    return {
        "gate": one.gate.letter,
        "name": one.gate.name,
        "asks": one.gate.asks,
        "state": one.state,
        "reason": one.reason,
        "hosts": one.hosts,
        "at": one.evidence and one.evidence.ended_at,
    }


def _letter(text: str | None) -> str | None:
    from narwhal.deploy import GATES, gate_of

    if text is None:
        return None
    try:
        return gate_of(text).letter
    except KeyError:
        hint = ", ".join(gate.title for gate in GATES)
        raise CommandError(Problem("gate", f"there is no gate {text!r}", hint=f"one of {hint}")) from None


def check_limit(opened: "Opened", choice: "Choice") -> None:
    """Refuse hosts that the fleet does not have."""
    names = [host.name for host in opened.declared.hosts]
    for name in choice.limit:
        if name not in names:
            raise CommandError(Problem("limit", f"there is no host {name!r}", hint=f"one of {', '.join(names)}"))


def as_ctrl_c(_signal: int, _frame: FrameType | None) -> None:
    """SIGTERM ends a run as Ctrl-C does: in order."""
    raise KeyboardInterrupt
