"""The `FrozenInputs` document: what the operator confirmed and gate A found, which all later gates go by."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from narwhal.deploy.errors import DeployError
from narwhal.documents import Document, write_atomically
from narwhal.fleet.model import Digest, Text

FROZEN = "frozen.json"


class FrozenInputs(Document):
    """What is fixed before anything is installed. It lies in the run directory, and may be committed."""

    kind: Literal["FrozenInputs"]
    """These are frozen inputs."""
    fleet: Text
    """Name of the fleet."""
    revision: Digest | None = None
    """Digest of the bundle, where the fleet file approves none."""
    host_keys: dict[str, str] = Field(default_factory=dict)
    """Host keys that the operator confirmed, by host; a key in the fleet file goes before it."""
    addresses: dict[str, str] = Field(default_factory=dict)
    """Fabric addresses that gate A found, by host, where the fleet file names only an interface."""
    inputs: dict[str, Digest] = Field(default_factory=dict)
    """Digest of each input when gate A passed: fleet file, bundle, launch records, image, model."""


def read_frozen(directory: Path, fleet: str) -> FrozenInputs:
    """The frozen inputs of a run directory; empty ones before the first. Raises `DeployError` for another fleet's."""
    path = directory / FROZEN
    try:
        found = FrozenInputs.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return FrozenInputs(kind="FrozenInputs", fleet=fleet)
    except ValueError as error:
        hint = "restore it from version control, or remove it: gate A writes it anew"
        raise DeployError("frozen", f"these are no FrozenInputs: {error}", file=str(path), hint=hint) from None
    if found.fleet != fleet:
        hint = "name another run directory with -o"
        raise DeployError("frozen", f"it is of fleet {found.fleet!r}, not {fleet!r}", file=str(path), hint=hint)
    return found


def write_frozen(directory: Path, frozen: FrozenInputs) -> None:
    """Write the frozen inputs of a run directory."""
    directory.mkdir(parents=True, exist_ok=True)
    write_atomically(directory / FROZEN, frozen.model_dump_json(by_alias=True, indent=2) + "\n")
