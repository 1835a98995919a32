"""A fleet file and its run directory, opened together."""

from dataclasses import dataclass
from pathlib import Path

from narwhal.deploy.bundle import BUNDLE
from narwhal.deploy.content import Wanted
from narwhal.deploy.fleetfile import with_revision
from narwhal.deploy.frozen import FrozenInputs, read_frozen
from narwhal.fleet import Fleet, FleetError, SourceError, check_source, read_source


@dataclass(frozen=True, slots=True)
class Opened:
    """What a verb of the gates works on."""

    file: Path
    directory: Path
    """The run directory: what is rendered, and evidence beside it."""
    frozen: FrozenInputs
    declared: Fleet
    """The fleet as its file says."""
    text: str
    """The fleet file."""
    wanted: Wanted
    """The same with what is frozen: what is rendered."""

    @property
    def bundle(self) -> Path:
        """Where the bundle is that gate B installs."""
        return self.directory / BUNDLE

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
    return Opened(file, directory, frozen, fleet, source.text, _with_frozen(fleet, source.text, frozen))


def _with_frozen(fleet: Fleet, text: str, frozen: FrozenInputs) -> Wanted:
    """The fleet with the revision that is frozen, where its file approves none, and the addresses that were found."""
    found = fleet
    if fleet.metadata.revision is None and frozen.revision is not None:
        found = fleet.model_copy(update={"metadata": fleet.metadata.model_copy(update={"revision": frozen.revision})})
        text = with_revision(text, frozen.revision)
    missing = {host.name for host in fleet.hosts if host.fabric.interface and host.fabric.address is None}
    addresses = {name: address for name, address in frozen.addresses.items() if name in missing}
    return Wanted(found, text, addresses, frozen.host_keys)
