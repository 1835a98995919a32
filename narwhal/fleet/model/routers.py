"""The routers: listeners, tenants, addresses, and the lease of the one that is active."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from narwhal.documents import Model
from narwhal.fleet.model.values import Name, Port, Secret, Text

Scope = Literal["read", "operate", "replicate"]
"""What the bearer of an admin token may do."""


class Tls(Model):
    """A certificate for a listener."""

    cert: Text
    """Path of the certificate chain, PEM."""
    key: Text
    """Path of the private key, PEM."""


class AdminToken(Model):
    """Someone who may use the admin listener over TCP."""

    name: Name
    """Who bears the token; the log names it."""
    scope: Scope
    """`read`: metrics, state, decisions; `operate`: also what changes something; `replicate`: read, for a standby."""
    token: Secret
    """The bearer token, at least 16 characters."""


class Admin(Model):
    """The control surface: metrics, state, and the verbs that change something."""

    port: Port = 8001
    """Port of the admin listener."""
    standby_port: Port | None = None
    """Port of the standby's admin listener; default: `port`. Another one where both routers are on one host."""
    bind: Literal["loopback", "fabric", "all"] = "loopback"
    """Where it listens; off loopback it needs tokens and TLS."""
    tokens: list[AdminToken] = Field(default_factory=list)
    """Who may do what over TCP; none: reading over loopback needs no token, and only the Unix socket takes orders."""
    tls: Tls | None = None
    """Certificate of the listener."""
    socket: Text | None = None
    """Path of the Unix socket; default: `admin-PORT.sock` in the router's state directory."""
    group: Text | None = None
    """Group whose members may use the Unix socket, besides root and the router's own user."""


Priority = Literal["interactive", "batch"]
"""Class of a request: while `interactive` ones wait, `batch` ones get a tenth of the prefill time."""


class TenantLimits(Model):
    """What a tenant may have, and its share when capacity is short."""

    name: Name
    """Name of the tenant."""
    weight: Annotated[float, Field(gt=0)] = 1.0
    """Share of the capacity when it is short, relative to the other tenants of its priority."""
    priority: Priority = "interactive"
    """Class of its requests; a request may ask for a lower one (`priority` in its body)."""
    max_concurrency: Annotated[int, Field(ge=1)] | None = None
    """Most requests at a time; default: no limit."""
    tokens_per_minute: Annotated[int, Field(ge=1)] | None = None
    """Most tokens per minute, prompts and completions together; default: no limit."""


class Tenant(TenantLimits):
    """Someone whose requests are told by a key, counted, limited and shared fairly."""

    keys: list[Secret] = Field(default_factory=list, max_length=2)
    """API keys; two are valid while rotating."""
    models: list[Text] = Field(default_factory=list)
    """Names of the models it may use; none: all."""
    disabled: bool = False
    """Whether its requests are refused, with 403."""


class Vip(Model):
    """A virtual address that follows the router which holds the lease."""

    address: Text
    """The address, with its prefix length: `10.0.0.100/24`."""
    interface: Text
    """Interface that carries it."""


class Routers(Model):
    """Where the router runs and what clients connect to."""

    primary: Name
    """Host of the primary router."""
    standby: Name | None = None
    """Host of the warm standby; that of the primary, for one that takes over from a process alone."""
    port: Port = 8000
    """Port for clients."""
    standby_port: Port | None = None
    """Port of the standby for clients; default: `port`, which on one host it opens once it leads."""
    bind: Literal["loopback", "fabric", "all"] = "loopback"
    """Where the client listener listens."""
    admin: Admin = Field(default_factory=Admin)
    """The control surface."""
    workers: Annotated[int, Field(ge=1, le=64)] = 1
    """Processes that share the client port, beside one that decides; 1: a single process does everything."""
    tls: Tls | None = None
    """Certificate of the client listener."""
    tenants: list[Tenant] = Field(default_factory=list)
    """Tenants; none: every request is of tenant `default` and needs no key."""
    front: Literal["addresses", "vip", "lb"] = "addresses"
    """How clients find the router: by its addresses, a virtual IP, or a load balancer."""
    vip: Vip | None = None
    """The virtual IP, with `front: vip`."""


class EtcdTls(Model):
    """How a router proves to etcd who it is, and knows etcd."""

    ca: Text
    """Path of the certificate authority that signed the members' certificates, PEM."""
    cert: Text
    """Path of the router's client certificate, PEM."""
    key: Text
    """Path of its private key, PEM."""


class EtcdAuth(Model):
    """The user that a router is to etcd; its JSON gateway does not take one from a certificate."""

    user: Text
    """Name of the user; its role needs to read and write the fleet's prefix."""
    password: Secret
    """Where its password is found."""


class EtcdLease(Model):
    """The lease of the active router, in etcd."""

    backend: Literal["etcd"]
    """etcd, for routers on several hosts."""
    endpoints: Annotated[list[str], Field(min_length=1)] = Field(examples=[["https://10.0.0.9:2379"]])
    """Client URLs of the etcd members."""
    prefix: Annotated[str, StringConstraints(pattern=r"^/[A-Za-z0-9/_.-]*$")] = "/narwhal"
    """Prefix of the fleet's keys; etcd's role for the routers should be limited to it."""
    tls: EtcdTls | None = None
    """Client certificate for etcd."""
    auth: EtcdAuth | None = None
    """User and password, where etcd asks for them."""
    ttl_s: Annotated[float, Field(ge=1)] = 5.0
    """How long the lease lives without a renewal, in seconds."""


class FileLease(Model):
    """The lease of the active router, as a locked file: for routers on one host."""

    backend: Literal["file"]
    """A locked file, for one host."""
    path: str | None = None
    """The lock file; default: beside the router's state."""


Lease = Annotated[EtcdLease | FileLease, Field(discriminator="backend")]
