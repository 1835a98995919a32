"""The `EngineLaunch` document: all that starting one engine takes, and nothing that differs between starts."""

import hashlib
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from narwhal.documents import Document, Model, write_atomically
from narwhal.fleet.model import Digest, EngineId, Port, PositiveSeconds, Secret, Text

Engine = Literal["vllm", "simulated"]
Device = Literal["cuda", "cpu", "none"]


class LaunchModel(Model):
    """The model that the engine serves."""

    name: Text
    """Name that clients say."""
    path: Text
    """Directory of the checkpoint on the engine's host."""
    digest: Digest | None = None
    """Digest of the directory; it is compared before the start when it is given."""


class LaunchContainer(Model):
    """The container that the engine runs in."""

    tool: Literal["podman", "docker"]
    """Program that runs it."""
    image: Text
    """Image with its digest."""


class EngineLaunch(Document):
    """How one engine is started.

    `narwhal engine run` adds what each start has for itself: the names that tell its generation. There is no
    `engine_id` in it on purpose: a restarted engine that keeps its id stays unreachable for the peers that knew it.
    """

    kind: Literal["EngineLaunch"]
    """This is a launch record."""
    fleet: Text
    """Name of the fleet."""
    engine: EngineId
    """Id of the engine in the fleet file."""
    program: Engine
    """Kind of inference server."""
    device: Device
    """What it computes on; `none`: it is simulated."""
    revision: str | None = None
    """Digest of the approved bundle, from `metadata.revision` of the fleet file."""
    container: LaunchContainer | None = None
    """Container it runs in; null: none."""
    argv: Annotated[list[Text], Field(min_length=1)]
    """Executable and arguments, without the names that it serves; inside the container when there is one."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Variables that are set for it."""
    secrets: dict[str, Secret] = Field(default_factory=dict)
    """Variables whose value is read at the start: a file, or a variable of `narwhal engine run`."""
    plugins: list[Literal["nixl-cpu"]] = Field(default_factory=list)
    """Shipped plugins that are put on its `PYTHONPATH`."""
    packages: dict[str, str] = Field(default_factory=dict)
    """Python packages that must be installed, with their version; an empty version: any."""
    connector: Text | None = None
    """Class that moves KV between engines; null: the engine is simulated."""
    gpus: list[Annotated[int, Field(ge=0)]] = Field(default_factory=list)
    """Indices of its GPUs on the host."""
    tensor_parallel: Annotated[int, Field(ge=1)] = 1
    """Processes that share its model, a GPU each."""
    host: Text
    """Address that its HTTP server listens on."""
    port: Port
    """Port of its HTTP server."""
    side_channel_host: Text
    """Address that peers shake hands at."""
    side_channel_port: Port
    """Port that peers shake hands at."""
    attest_port: Port = 8500
    """Port of the sidecar that attests it, on `host`."""
    kv_lease_s: PositiveSeconds
    """How long it keeps a handoff's KV, in seconds."""
    model: LaunchModel
    """The model."""

    def text(self) -> str:
        """The document as it is written: the same for the same launch."""
        return self.model_dump_json(by_alias=True, indent=2) + "\n"

    def digest(self) -> str:
        """SHA-256 of `text`, as `sha256:…`: names the launch wherever it is spoken of."""
        return "sha256:" + hashlib.sha256(self.text().encode()).hexdigest()


class LaunchError(ValueError):
    """A launch record that cannot be read or used; the message says why."""


def read_launch(path: Path) -> EngineLaunch:
    """The launch record of a file. Raises `LaunchError`."""
    try:
        return EngineLaunch.model_validate_json(path.read_bytes())
    except OSError as error:
        raise LaunchError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:
        raise LaunchError(f"{path} is not an EngineLaunch: {_first_line(error)}") from None


def write_launch(launch: EngineLaunch, path: Path) -> None:
    """Write a launch record."""
    write_atomically(path, launch.text())


def _first_line(error: ValueError) -> str:
    errors = getattr(error, "errors", None)
    if errors is None:
        return str(error)
    first = errors()[0]
    return f"{'.'.join(str(part) for part in first['loc']) or 'document'}: {first['msg']}"
