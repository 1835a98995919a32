"""The engines: how many, where their program comes from, how each is launched."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from narwhal.documents import Model
from narwhal.fleet.model.values import EngineId, Port, Role, Scalar, Secret, Text


class VenvRuntime(Model):
    """Engines run from a virtual environment on each host."""

    kind: Literal["venv"]
    """A virtual environment."""
    package: Text = Field(examples=["vllm==0.26.0"])
    """Requirement that installs the engine."""
    path: Text = "/opt/narwhal/engine"
    """Directory of the environment on each engine host."""
    device: Literal["cuda", "cpu"] = "cuda"
    """What the engine computes on; `cpu` is for trying out and for tests."""


class ContainerRuntime(Model):
    """Engines run in containers."""

    kind: Literal["container"]
    """Containers."""
    image: Annotated[str, StringConstraints(pattern=r"^.+@sha256:[0-9a-f]{64}$")]
    """Image with its digest: `registry/name@sha256:…`."""
    tool: Literal["podman", "docker"] = "podman"
    """Program that runs the containers."""


class SimulatedRuntime(Model):
    """Engines are simulated: real processes that speak vLLM's dialect and compute nothing."""

    kind: Literal["simulated"]
    """Simulated engines."""
    profile: str = "demo"
    """Timing: the name of a shipped profile, or the path of one."""
    speed: Annotated[float, Field(gt=0)] = 1.0
    """Factor on all speeds: 2 halves every time."""


Runtime = Annotated[VenvRuntime | ContainerRuntime | SimulatedRuntime, Field(discriminator="kind")]


class EngineOverride(Model):
    """What differs on one engine."""

    pin: Role | None = None
    """Role that this engine never leaves."""
    port: Port | None = None
    """Port of its HTTP server."""
    side_channel_port: Port | None = None
    """Port of its NIXL side channel."""
    attest_port: Port | None = None
    """Port of the sidecar that attests it."""
    gpus: list[Annotated[int, Field(ge=0)]] | None = None
    """Indices of its GPUs on the host."""
    url: str | None = Field(default=None, examples=["http://192.168.10.1:8100"])
    """Base URL, for an engine that something else starts."""
    args: dict[str, Scalar] = Field(default_factory=dict)
    """Arguments that replace or join `engines.args`."""


class EngineTls(Model):
    """How the router knows an engine that it reaches by https; without this, by the system's authorities and its name.

    Certificates are always verified.
    """

    ca: Text | None = None
    """Path of the authority that signed the engines' certificates, PEM; default: the system's authorities."""
    server_name: Text | None = Field(default=None, examples=["engines.example.org"])
    """Name in the engines' certificates; default: the host in each engine's URL."""


class Engines(Model):
    """The engines: how many, and how each is launched."""

    runtime: Runtime
    """Where the engine's program comes from."""
    per_gpu: Annotated[int, Field(ge=1, le=16)] = 1
    """Engines on each GPU; more than one shares the card."""
    per_host: Annotated[int, Field(ge=1, le=256)] = 1
    """Engines on each host that has no count of its own, in a fleet without GPUs."""
    tensor_parallel: Annotated[int, Field(ge=1, le=64)] = 1
    """GPUs of each engine."""
    max_model_len: Annotated[int, Field(ge=1)] = 16384
    """Longest prompt plus output, in tokens."""
    max_num_seqs: Annotated[int, Field(ge=1)] = 64
    """Most requests in one batch of an engine."""
    max_num_batched_tokens: Annotated[int, Field(ge=1)] = 2048
    """Most tokens in one step of an engine: the size of a prefill chunk."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = None
    """Share of a card's memory that one engine takes; vLLM's own default (0.9) when it is left out."""
    kv_lease_s: Annotated[float, Field(ge=1)] = 30.0
    """How long a producer keeps a handoff's KV for its consumer, in seconds."""
    port_base: Port = 8100
    """HTTP port of a host's engine 0; engine n listens on `port_base` + n."""
    side_channel_port_base: Port = 5600
    """NIXL side-channel port of a host's engine 0; engine n has `side_channel_port_base` + n."""
    attest_port_base: Port = 8500
    """Port of the sidecar that attests a host's engine 0; engine n has `attest_port_base` + n."""
    api_key: Secret | None = None
    """Bearer token that engines ask the router for; engines that Narwhal starts get it as well."""
    tls: EngineTls | None = None
    """TLS to the engines; where it is given, an engine's URL that does not say otherwise is https."""
    args: dict[str, Scalar] = Field(default_factory=dict, examples=[{"enforce-eager": True}])
    """Further arguments of the engine's server, without the leading dashes."""
    env: dict[str, str | Secret] = Field(default_factory=dict, examples=[{"HF_TOKEN": {"file": "/etc/narwhal/hf"}}])
    """Environment variables of every engine; secrets as `{env: NAME}` or `{file: /path}`, read where it starts."""
    overrides: dict[EngineId, EngineOverride] = Field(default_factory=dict, examples=[{"gpu-1/0": {"pin": "prefill"}}])
    """What differs on single engines, by id."""


class Split(Model):
    """How many engines hold each role at the start; the controller moves on from there."""

    prefill: Annotated[int, Field(ge=0)] = Field(examples=[3])
    """Engines that start as prefill."""
    decode: Annotated[int, Field(ge=0)] = Field(examples=[5])
    """Engines that start as decode."""
