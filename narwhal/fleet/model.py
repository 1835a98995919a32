"""The fleet file as a typed model: one class for each mapping of the YAML, defaults and ranges included.

`schemas/fleet/v1.json` is generated from these classes (`make schemas`), and a test holds the two together.
Units stand in the names: `_s` seconds, `_tokens` tokens, `_bytes` bytes, `_gib` 2^30 bytes, `_gbps` 10^9 bits per
second. Ratios have no unit.
"""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from narwhal.documents import Document, Model

Role = Literal["prefill", "decode"]
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
EngineId = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?/[0-9]{1,3}$")]
Port = Annotated[int, Field(ge=1, le=65535)]
Seconds = Annotated[float, Field(ge=0)]
PositiveSeconds = Annotated[float, Field(gt=0)]
Digest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]


class SecretFromEnv(Model):
    """A secret that is read from an environment variable."""

    env: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
    """Name of the environment variable."""


class SecretFromFile(Model):
    """A secret that is read from a file; its last newline is not part of it."""

    file: Annotated[str, StringConstraints(min_length=1)]
    """Path of the file, on the host where it is used."""


Secret = SecretFromEnv | SecretFromFile


class Metadata(Model):
    """What this fleet is called, and which revision of Narwhal it runs."""

    name: Name = Field(examples=["lab"])
    """Name of the fleet: lower case letters, digits and hyphens."""
    revision: str | None = None
    """The approved application revision: the digest of the bundle that `narwhal package` made."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Free labels; they stand on every metric."""


class ModelSpec(Model):
    """The model that every engine serves."""

    name: Annotated[str, StringConstraints(min_length=1)] = Field(examples=["qwen3-8b"])
    """The name clients say in `model`."""
    path: Annotated[str, StringConstraints(min_length=1)] = Field(examples=["/models/qwen3-8b"])
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
    """TTFT targets by prompt length, rising; the first that covers the prompt wins, `ttft_s` covers the rest."""

    def ttft_for(self, prompt_tokens: int) -> float:
        """The TTFT target in seconds for a prompt of `prompt_tokens` tokens."""
        for target in self.ttft_by_prompt:
            if prompt_tokens <= target.up_to_tokens:
                return target.ttft_s
        return self.ttft_s


class Ssh(Model):
    """How the operator's machine reaches a host."""

    address: Annotated[str, StringConstraints(min_length=1)] = Field(examples=["10.0.0.1"])
    """Address or DNS name."""
    user: Annotated[str, StringConstraints(min_length=1)] = Field(examples=["ops"])
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
    """Number of engines on this host; default: by `engines.per_gpu` and `tensor_parallel`, else `per_host`."""


class VenvRuntime(Model):
    """Engines run from a virtual environment on each host."""

    kind: Literal["venv"]
    package: Annotated[str, StringConstraints(min_length=1)] = Field(examples=["vllm==0.26.0"])
    """Requirement that installs the engine."""


class ContainerRuntime(Model):
    """Engines run in containers."""

    kind: Literal["container"]
    image: Annotated[str, StringConstraints(pattern=r"^.+@sha256:[0-9a-f]{64}$")]
    """Image with its digest: `registry/name@sha256:…`."""
    tool: Literal["podman", "docker"] = "podman"
    """Program that runs the containers."""


class SimulatedRuntime(Model):
    """Engines are simulated: real processes that speak vLLM's dialect and compute nothing."""

    kind: Literal["simulated"]
    profile: str = "demo"
    """Timing: the name of a shipped profile, or the path of one."""
    speed: Annotated[float, Field(gt=0)] = 1.0
    """Factor on all speeds: 2 halves every time."""


Runtime = Annotated[VenvRuntime | ContainerRuntime | SimulatedRuntime, Field(discriminator="kind")]
Scalar = str | int | float | bool


class EngineOverride(Model):
    """What differs on one engine."""

    pin: Role | None = None
    """Role that this engine never leaves."""
    port: Port | None = None
    """Port of its HTTP server."""
    side_channel_port: Port | None = None
    """Port of its NIXL side channel."""
    gpus: list[Annotated[int, Field(ge=0)]] | None = None
    """Indices of its GPUs on the host."""
    url: str | None = Field(default=None, examples=["http://192.168.10.1:8100"])
    """Base URL, for an engine that something else starts."""
    args: dict[str, Scalar] = Field(default_factory=dict)
    """Arguments that replace or join `engines.args`."""


class Engines(Model):
    """The engines: how many, and how each is launched."""

    runtime: Runtime
    """Where the engine's program comes from."""
    per_gpu: Annotated[int, Field(ge=1, le=16)] = 1
    """Engines on each GPU; more than one shares the card."""
    per_host: Annotated[int, Field(ge=1, le=256)] = 1
    """Engines on each engine host that has no GPU and no count of its own."""
    tensor_parallel: Annotated[int, Field(ge=1, le=64)] = 1
    """GPUs of each engine."""
    max_model_len: Annotated[int, Field(ge=1)] = 16384
    """Longest prompt plus output, in tokens."""
    max_num_seqs: Annotated[int, Field(ge=1)] = 64
    """Most requests in one batch of an engine."""
    max_num_batched_tokens: Annotated[int, Field(ge=1)] = 2048
    """Most tokens in one step of an engine: the size of a prefill chunk."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = None
    """Share of a card's memory that one engine takes; the engine's own default otherwise."""
    kv_lease_s: Annotated[float, Field(ge=1)] = 30.0
    """How long a producer keeps a handoff's KV for its consumer, in seconds."""
    port_base: Port = 8100
    """HTTP port of a host's engine 0; engine n listens on `port_base + n`."""
    side_channel_port_base: Port = 5600
    """NIXL side-channel port of a host's engine 0."""
    args: dict[str, Scalar] = Field(default_factory=dict, examples=[{"enforce-eager": True}])
    """Further arguments of the engine's server, without the leading dashes."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables of every engine."""
    overrides: dict[EngineId, EngineOverride] = Field(
        default_factory=dict, examples=[{"gpu-1/0": {"pin": "prefill"}}]
    )
    """What differs on single engines, by id."""


class Split(Model):
    """How many engines hold each role at the start; the controller moves on from there."""

    prefill: Annotated[int, Field(ge=0)] = Field(examples=[3])
    """Engines that start as prefill."""
    decode: Annotated[int, Field(ge=0)] = Field(examples=[5])
    """Engines that start as decode."""


class Tls(Model):
    """A certificate for a listener."""

    cert: Annotated[str, StringConstraints(min_length=1)]
    """Path of the certificate chain, PEM."""
    key: Annotated[str, StringConstraints(min_length=1)]
    """Path of the private key, PEM."""


class Admin(Model):
    """The control surface: metrics, state, and the verbs that change something."""

    port: Port = 8001
    """Port of the admin listener."""
    bind: Literal["loopback", "fabric", "all"] = "loopback"
    """Where it listens; off loopback it needs a token and TLS."""
    token: Secret | None = None
    """Bearer token of the listener."""
    tls: Tls | None = None
    """Certificate of the listener."""


class Tenant(Model):
    """Someone whose requests are counted and shared fairly."""

    name: Name
    """Name of the tenant."""
    keys: list[Secret] = Field(default_factory=list, max_length=2)
    """API keys; two are valid while rotating."""
    weight: Annotated[float, Field(gt=0)] = 1.0
    """Share of the capacity when it is short."""
    max_concurrency: Annotated[int, Field(ge=1)] | None = None
    """Most requests at a time."""


class Vip(Model):
    """A virtual address that follows the router which holds the lease."""

    address: Annotated[str, StringConstraints(min_length=1)]
    """The address, with its prefix length: `10.0.0.100/24`."""
    interface: Annotated[str, StringConstraints(min_length=1)]
    """Interface that carries it."""


class Routers(Model):
    """Where the router runs and what clients connect to."""

    primary: Name
    """Host of the primary router."""
    standby: Name | None = None
    """Host of the warm standby."""
    port: Port = 8000
    """Port for clients."""
    bind: Literal["loopback", "fabric", "all"] = "loopback"
    """Where the client listener listens."""
    admin: Admin = Field(default_factory=Admin)
    """The control surface."""
    tls: Tls | None = None
    """Certificate of the client listener."""
    tenants: list[Tenant] = Field(default_factory=list)
    """Tenants; none: every request is of tenant `default` and needs no key."""
    front: Literal["addresses", "vip", "lb"] = "addresses"
    """How clients find the router: by its addresses, a virtual IP, or a load balancer."""
    vip: Vip | None = None
    """The virtual IP, with `front: vip`."""


class EtcdLease(Model):
    """The lease of the active router, in etcd."""

    backend: Literal["etcd"]
    endpoints: Annotated[list[str], Field(min_length=1)] = Field(examples=[["https://10.0.0.9:2379"]])
    """Client URLs of the etcd members."""
    ttl_s: Annotated[float, Field(ge=1)] = 5.0
    """How long the lease lives without a renewal, in seconds."""


class FileLease(Model):
    """The lease of the active router, as a locked file: for routers on one host."""

    backend: Literal["file"]
    path: str | None = None
    """The lock file; default: beside the router's state."""


Lease = Annotated[EtcdLease | FileLease, Field(discriminator="backend")]


class Queue(Model):
    """Prompts that wait in the router."""

    max_requests: Annotated[int, Field(ge=0)] = 1024
    """Most requests that wait; one more is refused."""
    max_wait_s: Seconds = 60.0
    """Longest wait for a prefill engine, in seconds; then the request is refused."""


class Deadlines(Model):
    """How long the router waits for an engine, in seconds; 0 switches a deadline off."""

    prefill_s: Seconds = 60.0
    """For the answer of leg 1."""
    first_token_s: Seconds = 30.0
    """From sending leg 2 to its first token."""
    gap_s: Seconds = 30.0
    """Between two tokens of a stream."""
    request_s: Seconds = 3600.0
    """For a whole request, from arrival to its last byte."""


class Serving(Model):
    """How requests are admitted, placed and timed."""

    admission: Literal["predictive", "open"] = "predictive"
    """`predictive` refuses what would miss its TTFT target; `open` never refuses."""
    margin: Annotated[float, Field(ge=0)] = 0.1
    """A request is refused when its price exceeds TTFT × (1 + margin)."""
    prefill_in_flight: Annotated[int, Field(ge=1)] = 2
    """Prompts that an engine is given at a time; more only while they fit into one batch of tokens."""
    queue: Queue = Field(default_factory=Queue)
    """Prompts that wait in the router."""
    deadlines: Deadlines = Field(default_factory=Deadlines)
    """How long the router waits for an engine."""
    max_retries: Annotated[int, Field(ge=0, le=10)] = 2
    """Further engines that a request is sent to before its first byte, when one fails."""
    max_body_bytes: Annotated[int, Field(ge=1024)] = 33554432
    """Largest request body, in bytes."""
    max_header_bytes: Annotated[int, Field(ge=1024)] = 65536
    """Largest request head, in bytes."""
    media_hosts: list[str] = Field(default_factory=list)
    """Hosts that a client's media URLs may name."""
    shutdown_s: Seconds = 30.0
    """How long running requests may finish after SIGTERM, in seconds."""


class Thresholds(Model):
    """Guards and load limits of role moves, whatever the policy."""

    cooldown_s: Seconds = 0.0
    """Least time between two decisions that move engines from prefill to decode, in seconds."""
    dwell_s: Seconds = 0.0
    """Least time that an engine stays in a role it was moved to, in seconds."""
    flip_resident_guard: Annotated[int, Field(ge=0)] = 0
    """Most resident streams of a decode engine that is moved; 0: no limit."""
    shrink: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Prefill load at or below which an engine may leave prefill while the evidence window is open."""
    expand: Annotated[float, Field(gt=0)] = 1.0
    """Load of a role above which one proposal is enough to move an engine to it."""


class Reactive(Model):
    """The `reactive` policy: adjacent splits, evidence windows, departures."""

    step_s: PositiveSeconds = 1.0
    """Time between two evaluations, in seconds."""
    window_s: PositiveSeconds = 30.0
    """Long demand horizon, in seconds."""
    evidence_span_s: PositiveSeconds = 4.0
    """Short demand horizon, and time after which the arrival-evidence window closes, in seconds."""
    evidence_max_span_s: PositiveSeconds = 10.0
    """Time after which the window closes under sparse traffic, in seconds."""
    evidence_min_arrivals: Annotated[int, Field(ge=1)] = 8
    """Arrivals that close the window after `evidence_span_s`."""
    demand_rise_tolerance: Annotated[float, Field(ge=0)] = 0.15
    """Share by which the short horizon may exceed the long one and still count as stable."""
    movement_margin: Annotated[float, Field(ge=0)] = 0.15
    """Improvement of the score that a move needs."""
    confirmations: Annotated[int, Field(ge=1)] = 2
    """Equal proposals in a row that a move needs."""


class Projection(Model):
    """The `projection` policy: any split within k moves, scored from queues and occupancy."""

    step_s: PositiveSeconds = 1.0
    """Time between two evaluations, in seconds."""
    window_s: PositiveSeconds = 30.0
    """Longest demand window, in seconds."""
    short_window_s: PositiveSeconds = 3.0
    """Short demand window, in seconds."""
    horizon_s: PositiveSeconds = 5.0
    """How far a prefill backlog is projected, in seconds."""
    occupancy_target: Annotated[float, Field(gt=0, le=1)] = 0.70
    """Share of a decode engine's room that visible tokens may fill."""
    expand_at: Annotated[float, Field(ge=0)] = 0.7
    """Score of the current split from which engines may move to prefill."""
    shrink_at: Annotated[float, Field(ge=0)] = 0.9
    """Score of the current split from which engines may move to decode."""
    gain: Annotated[float, Field(ge=0)] = 0.15
    """Least improvement, as a share of the score."""
    gain_calm: Annotated[float, Field(ge=0)] = 0.2
    """Least improvement while the score is below 1."""
    reversal_s: Seconds = 8.0
    """A move against one younger than this needs twice the improvement, in seconds."""
    move_cost: Annotated[float, Field(ge=0)] = 0.02
    """Cost of each moved engine in the score."""
    min_arrivals: Annotated[int, Field(ge=1)] = 8
    """Arrivals in the long window below which nothing moves unless prompts wait."""
    overflow: bool = False
    """Whether a decode engine with room may take a prompt that prefill cannot serve in time."""


class Controller(Model):
    """Which engine holds which role, and when that changes."""

    enabled: bool = True
    """Whether roles move at all."""
    policy: Literal["reactive", "projection"] = "reactive"
    """How splits are scored and moves chosen."""
    advisory: bool = False
    """Record what would be done, and do nothing."""
    monitor_interval_s: PositiveSeconds = 1.0
    """Time between two passes of floor repair, in seconds."""
    min_prefill: Annotated[int, Field(ge=0)] = 1
    """Floor: least live prefill engines."""
    min_decode: Annotated[int, Field(ge=0)] = 1
    """Floor: least live decode engines."""
    thresholds: Thresholds = Field(default_factory=Thresholds)
    """Guards and load limits."""
    reactive: Reactive = Field(default_factory=Reactive)
    """Parameters of the `reactive` policy."""
    projection: Projection = Field(default_factory=Projection)
    """Parameters of the `projection` policy."""


class Recovery(Model):
    """What happens when an engine or a router fails."""

    degraded: Literal["aggregate", "refuse"] = "aggregate"
    """When a role has no engine left: serve both roles on the others, or refuse."""
    probe_interval_s: PositiveSeconds = 1.0
    """Time between two looks at an engine, in seconds."""
    probe_timeout_s: PositiveSeconds = 3.0
    """How long an engine may take to answer a look, in seconds."""
    eject_after: Annotated[int, Field(ge=1)] = 3
    """Failures in a row that eject an engine; a refused connection ejects at once."""
    readmit_after: Annotated[int, Field(ge=1)] = 2
    """Healthy looks in a row that readmit it."""
    state_path: str | None = None
    """Where the router keeps its state on disk."""


class Profiles(Model):
    """How fast the engines are."""

    path: str | None = None
    """Directory of measured profiles."""
    prior: str = "demo"
    """Profile that stands in until an engine has one: a shipped name, or a path."""


class Journal(Model):
    """One row for each request and decision, as JSON Lines."""

    path: str | None = None
    """Directory of the journal; default: beside the router's state."""
    max_bytes: Annotated[int, Field(ge=65536)] = 67108864
    """Size at which a file is closed and a new one begun, in bytes."""
    keep: Annotated[int, Field(ge=1)] = 8
    """Closed files that are kept."""


class Observability(Model):
    """What is written down, and who scrapes it."""

    journal: Journal = Field(default_factory=Journal)
    """The journal."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least level of log lines."""


class Fleet(Document):
    """A fleet of engines that serves one model with prefill and decode apart."""

    kind: Literal["Fleet"]
    metadata: Metadata
    """Name and revision."""
    model: ModelSpec
    """The model that every engine serves."""
    slo: Slo
    """What clients are promised."""
    hosts: Annotated[list[Host], Field(min_length=1)]
    """The machines."""
    engines: Engines
    """The engines."""
    split: Split
    """How many engines hold each role at the start."""
    routers: Routers
    """The routers."""
    lease: Lease = Field(default_factory=lambda: FileLease(backend="file"))
    """How a router proves that it is the active one."""
    serving: Serving = Field(default_factory=Serving)
    """Admission, placement, deadlines."""
    controller: Controller = Field(default_factory=Controller)
    """The role controller."""
    recovery: Recovery = Field(default_factory=Recovery)
    """Failure handling."""
    profiles: Profiles = Field(default_factory=Profiles)
    """Engine speeds."""
    observability: Observability = Field(default_factory=Observability)
    """Journal and logs."""
