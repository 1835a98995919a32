"""A fleet file and its run directory, opened together."""

from dataclasses import dataclass
from pathlib import Path

from narwhal.deploy.content import Wanted
from narwhal.deploy.frozen import FrozenInputs, read_frozen
from narwhal.fleet import FleetError, SourceError, check_source, read_source


@dataclass(frozen=True, slots=True)
class Opened:
    """What a verb of the gates works on."""

    file: Path
    directory: Path
    """The run directory: what is rendered, and evidence beside it."""
    frozen: FrozenInputs
    wanted: Wanted

    @property
    def unknown_addresses(self) -> list[str]:
        """Hosts whose fabric address is still to be found by gate A."""
        hosts = self.wanted.expanded.fleet.hosts
        return [host.name for host in hosts if host.fabric.interface and host.fabric.address is None]


def run_directory(file: Path, name: str) -> Path:
    """Where a fleet is rendered unless it is said: `run/NAME` beside its file."""
    return file.parent / "run" / name


def open_run(file: Path, directory: Path | None = None) -> Opened:
    """Open a fleet file and its run directory; neither has to be rendered yet.

    Raises `FleetError`, `SourceError`, and `DeployError` for a run directory of another fleet.
    """
    source = read_source(str(file))
    checked = check_source(source)
    if checked.fleet is None:
        raise FleetError(checked.findings)
    if str(file) == "-":
        raise SourceError("stdin", "a run needs a file", "-", "write it to a file")
    fleet = checked.fleet
    directory = directory or run_directory(file, fleet.metadata.name)
    frozen = read_frozen(directory, fleet.metadata.name)
    missing = {host.name for host in fleet.hosts if host.fabric.interface and host.fabric.address is None}
    addresses = {name: address for name, address in frozen.addresses.items() if name in missing}
    return Opened(file, directory, frozen, Wanted(fleet, source.text, file.parent, addresses, frozen.host_keys))
