"""`narwhal diff`: what a change of the fleet file would change, before anything runs."""

from dataclasses import asdict
from typing import Annotated

import typer

from narwhal.cli.app import progress, verb
from narwhal.cli.deploy import dry_run_stopped
from narwhal.cli.gatewords import DirectoryOption, FleetArgument, deploy_errors, opened_run
from narwhal.cli.output import Result


@verb("diff", short_help="What a change of the fleet file would change on which host.")
def diff(
    fleet: FleetArgument,
    output: DirectoryOption = None,
    check: Annotated[
        bool, typer.Option("--check", help="Ask the hosts too: Ansible's --check --diff of each gate that would run.")
    ] = False,
) -> Result:
    """Compare what the fleet file renders to now with what was rendered last, host by host, and name the gates.

    Writes nothing. With --check the hosts are asked as well, and nothing is changed there either.

    Example: narwhal diff fleet.yaml --check
    """
    from narwhal.deploy import Choice, differences, dry_run, in_scratch, standings_of, text_of, to_run

    opened = opened_run(fleet, output)
    with deploy_errors():
        found = differences(opened)
        plan = to_run(Choice(), standings_of(opened))
        lines = [text_of(found)] if found else [f"nothing differs from {opened.directory}"]
        lines += [
            f"gate {one.gate.title} would run on {', '.join(one.hosts or ()) or 'all hosts'}: {one.reason}"
            for one in plan
        ]
        data = {
            "changes": {place: [asdict(change) for change in files] for place, files in found.items()},
            "gates": [{"gate": one.gate.letter, "hosts": one.hosts, "reason": one.reason} for one in plan],
        }
        if check and plan:
            progress().say("\n".join(lines))
            with in_scratch(opened) as scratch:
                stop = dry_run(scratch, Choice(), plan, progress().say, opened.bundle)
            lines = ["nothing was changed; what would be is said above"]
            if stop is not None:
                raise dry_run_stopped(stop, data)
    return Result(data=data, text="\n".join(lines))
