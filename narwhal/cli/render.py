"""`narwhal render`: the directory that Ansible works from."""

from typing import TYPE_CHECKING, Annotated

import typer

from narwhal.cli.app import verb
from narwhal.cli.gatewords import DirectoryOption, FleetArgument, deploy_errors, opened_run
from narwhal.cli.output import Result

if TYPE_CHECKING:
    from narwhal.deploy import Changes


@verb("render", short_help="Write inventory, variables and playbooks of a fleet into a directory.")
def render(
    fleet: FleetArgument,
    output: DirectoryOption = None,
    force: Annotated[
        bool, typer.Option("--force", help="Write over files that were edited by hand; names them.")
    ] = False,
) -> Result:
    """Write inventory, variables, launch records and a playbook for each gate; complete without Narwhal.

    The same fleet file renders to the same bytes: commit the directory and read its diff. A file that somebody edited
    is not written over; a file that is no longer asked for is removed. Exit code 2: edited by hand, nothing written.

    Example: narwhal render fleet.yaml -o run/lab && cd run/lab && ansible-playbook gate-a-discover.yml
    """
    from narwhal.deploy import changes, write_directory

    opened = opened_run(fleet, output)
    with deploy_errors():
        planned = changes(opened.wanted, opened.directory)
        forced = write_directory(opened.directory, planned, force=force)
    data = {
        "directory": str(opened.directory),
        "added": list(planned.added),
        "changed": list(planned.changed),
        "removed": list(planned.removed),
        "written_over": list(forced),
        "unknown_addresses": opened.unknown_addresses,
    }
    lines = [f"{opened.directory}: {_counts(planned)}", *(f"written over by --force: {path}" for path in forced)]
    if opened.unknown_addresses:
        hosts = ", ".join(opened.unknown_addresses)
        lines.append(f"fabric address of {hosts}: not known before gate A; the SSH address stands in until then")
    return Result(data=data, artifacts=[str(opened.directory)], text="\n".join(lines))


def _counts(planned: "Changes") -> str:
    if planned.none:
        return f"{len(planned.files)} files, none changed"
    counts = {"added": planned.added, "changed": planned.changed, "removed": planned.removed}
    parts = [f"{len(paths)} {name}" for name, paths in counts.items() if paths]
    return f"{len(planned.files)} files: {', '.join(parts)}"
