"""What is served, what is promised, and on which machines."""

from typing import Annotated

from pydantic import Field, StringConstraints

from narwhal.documents import Model
from narwhal.fleet.model.values import Digest, Name, Port, PositiveSeconds, Text


class Metadata(Model):
    """What this fleet is called, and which revision of Narwhal it runs."""

    name: Name = Field(examples=["lab"])
    """Name of the fleet: lower case letters, digits and hyphens."""
    revision: str | None = None
    """The approved application revision: the digest of the bundle that `narwhal package` made."""
    python: Annotated[str, StringConstraints(pattern=r"^3\.1[1-9]$")] | None = Field(default=None, examples=["3.11"])
    """Python of the hosts that Narwhal is packaged for and installed with, 3.11 or newer; default: their `python3`, and
    packaged for the version that `narwhal package` runs with."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Free labels; they stand on every metric."""


class ModelSpec(Model):
    """The model that every engine serves."""

    name: Text = Field(examples=["qwen3-8b"])
    """The name clients say in `model`."""
    path: Text = Field(examples=["/models/qwen3-8b"])
    """Directory of the checkpoint, the same on every engine host."""
    digest: Digest | None = None
    """Digest of the directory; gate A compares it when it is given."""


class PromptTarget(Model):
    """A TTFT target for prompts up to some length."""

    up_to_tokens: Annotated[int, Field(ge=1)]
    """Longest prompt the target holds for, in tokens."""
    ttft_s: PositiveSeconds
    """Target for the time to first token, in seconds."""


class Slo(Model):
    """What clients are promised, as they see it."""

    ttft_s: PositiveSeconds = Field(examples=[2.0])
    """Target for the time from arrival to the first byte of the first token, in seconds."""
    tpot_s: PositiveSeconds = Field(examples=[0.05])
    """Target for the mean gap between tokens after the first, in seconds."""
    ttft_by_prompt: list[PromptTarget] = Field(default_factory=list)
    """TTFT targets by prompt length, rising; the first that covers a prompt wins, `ttft_s` is for the rest."""
    attainment: Annotated[float, Field(gt=0, lt=1)] = 0.95
    """Share of requests that should be within both targets: what alerts judge by; nothing is decided with it."""

    def ttft_for(self, prompt_tokens: int) -> float:
        """The TTFT target in seconds for a prompt of `prompt_tokens` tokens."""
        for target in self.ttft_by_prompt:
            if prompt_tokens <= target.up_to_tokens:
                return target.ttft_s
        return self.ttft_s


class Ssh(Model):
    """How the operator's machine reaches a host."""

    address: Text = Field(examples=["10.0.0.1"])
    """Address or DNS name."""
    user: Text = Field(examples=["ops"])
    """User to log in as."""
    port: Port = 22
    """Port of the SSH server."""
    host_key: str | None = Field(default=None, examples=["ssh-ed25519 AAAAC3…"])
    """Pinned public host key, as in `known_hosts`; without it the operator confirms the key once."""


class FabricInterface(Model):
    """A host's side of the network that KV crosses."""

    interface: str | None = Field(default=None, examples=["eth1"])
    """Network interface; its address is looked up by gate A."""
    address: str | None = Field(default=None, examples=["192.168.10.1"])
    """Address on the fabric; default: the SSH address, or loopback for a host without `ssh`."""


class Host(Model):
    """A machine of the fleet. Without `ssh` it is this machine."""

    name: Name = Field(examples=["gpu-1"])
    """Short name; engines are called after it: `gpu-1/0`."""
    ssh: Ssh | None = None
    """How to reach it; leave it out for this machine."""
    fabric: FabricInterface = Field(default_factory=FabricInterface)
    """Where KV enters and leaves it."""
    gpus: Annotated[int, Field(ge=0, le=64)] = 0
    """Number of GPUs that engines may use."""
    gpu_memory_gib: Annotated[float, Field(gt=0)] | None = None
    """Memory of each GPU in GiB, when memory shares are to be checked offline."""
    engines: Annotated[int, Field(ge=0, le=256)] | None = None
    """Number of engines on this host.

    Default: `gpus` / `engines.tensor_parallel` x `engines.per_gpu`; on a host without GPUs `engines.per_host` when no
    host of the fleet has GPUs, else none.
    """
