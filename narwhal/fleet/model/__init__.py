"""The fleet file as a typed model: one class for each mapping of the YAML, defaults and ranges included.

`schemas/fleet/v1.json` is generated from these classes (`make schemas`), and a test holds the two together.
Units stand in the names: `_s` seconds, `_tokens` tokens, `_bytes` bytes, `_gib` 2^30 bytes. Ratios have no unit.
"""

from narwhal.fleet.model.controller import Controller, Projection, Reactive, Thresholds
from narwhal.fleet.model.engines import (
    ContainerRuntime,
    EngineOverride,
    Engines,
    Runtime,
    SimulatedRuntime,
    Split,
    VenvRuntime,
)
from narwhal.fleet.model.fleet import Fleet
from narwhal.fleet.model.routers import Admin, EtcdLease, EtcdTls, FileLease, Lease, Routers, Tenant, Tls, Vip
from narwhal.fleet.model.serving import Deadlines, Journal, Observability, Profiles, Queue, Recovery, Serving
from narwhal.fleet.model.sites import FabricInterface, Host, Metadata, ModelSpec, PromptTarget, Slo, Ssh
from narwhal.fleet.model.values import (
    Digest,
    EngineId,
    Name,
    Port,
    PositiveSeconds,
    Role,
    Scalar,
    Seconds,
    Secret,
    SecretFromEnv,
    SecretFromFile,
    Text,
)

__all__ = [
    "Admin",
    "ContainerRuntime",
    "Controller",
    "Deadlines",
    "Digest",
    "EngineId",
    "EngineOverride",
    "Engines",
    "EtcdLease",
    "EtcdTls",
    "FabricInterface",
    "FileLease",
    "Fleet",
    "Host",
    "Journal",
    "Lease",
    "Metadata",
    "ModelSpec",
    "Name",
    "Observability",
    "Port",
    "PositiveSeconds",
    "Profiles",
    "Projection",
    "PromptTarget",
    "Queue",
    "Reactive",
    "Recovery",
    "Role",
    "Routers",
    "Runtime",
    "Scalar",
    "Seconds",
    "Secret",
    "SecretFromEnv",
    "SecretFromFile",
    "Serving",
    "SimulatedRuntime",
    "Slo",
    "Split",
    "Ssh",
    "Tenant",
    "Text",
    "Thresholds",
    "Tls",
    "VenvRuntime",
    "Vip",
]
