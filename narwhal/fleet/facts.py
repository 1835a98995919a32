"""What the rules ask about a fleet file, worked out once; each fact is known or not, apart from the others."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path as FilePath

from narwhal.fleet.draft import Unknown, known, path_of, written
from narwhal.fleet.expand import LOOPBACK, engine_count, engine_endpoint, engine_gpus, host_address
from narwhal.fleet.finding import Path
from narwhal.fleet.model import Benchmark, EngineOverride, Fleet, Host, Points, Role, Scalar
from narwhal.fleet.profile import Profile
from narwhal.fleet.profiles import ProfileError, load_profile


@dataclass(frozen=True, slots=True)
class HostFact:
    """A host with a name that is known."""

    name: str
    path: Path
    host: Host
    address: str | None
    """What peers reach it by; None when the file is broken there."""


@dataclass(frozen=True, slots=True)
class EngineFact:
    """An engine of a host whose count is known; None stands for what the file is broken about."""

    id: str
    host: HostFact
    index: int
    override: EngineOverride
    """Its overrides, or the defaults."""
    override_path: Path | None
    """Where they stand; None when it has none."""
    port: int | None
    side_channel_port: int | None
    attest_port: int | None
    """Of its sidecar; None too when the engine is simulated, as it has none."""
    gpus: tuple[int, ...] | None
    pin: Role | None
    args: dict[str, Scalar]

    def path(self, key: str, fallback: Path) -> Path:
        """Where `key` of this engine is decided: its override when that says so, else `fallback`."""
        if self.override_path is not None and written(self.override, key):
            return (*self.override_path, key)
        return fallback


@dataclass
class Facts:
    """A fleet file, maybe partly broken, and what follows from it."""

    fleet: Fleet
    """A draft: reading what is broken raises `Unknown`."""
    own: Benchmark | None = None
    """The benchmark of a file of its own; then the fleet is empty."""
    folder: FilePath = field(default_factory=FilePath)
    """Folder of the file, which paths in it are relative to."""
    profiles: dict[str, Profile | None] = field(default_factory=dict)

    @property
    def benchmark(self) -> Points | None:
        """Benchmark points: of a file of their own, or of the fleet file; None: there are none."""
        return self.own if self.own is not None else self.fleet.benchmark

    @cached_property
    def hosts(self) -> list[HostFact]:
        """The hosts that have a name, in order; empty when there is no list of hosts."""
        return list(self._hosts())

    @cached_property
    def hosts_complete(self) -> bool:
        """Whether every host is known by name."""
        listed = known(lambda: self.fleet.hosts)
        return listed is not None and len(self.hosts) == len(listed)

    @cached_property
    def engines(self) -> list[EngineFact]:
        """The engines of the hosts whose count is known."""
        return [engine for host in self.hosts for engine in known(lambda h: self._engines(h), host) or ()]

    def engine_total(self) -> int:
        """Number of engines. Raises `Unknown` when one host's is not known."""
        if not self.hosts_complete:
            raise Unknown("hosts")
        return sum(self.count(host) for host in self.hosts)

    def pins_known(self) -> bool:
        """Whether the file is readable wherever it pins an engine. Raises `Unknown` where it is not."""
        return all(override.pin in ("prefill", "decode", None) for override in self.fleet.engines.overrides.values())

    def count(self, host: HostFact) -> int:
        """Engines of a host. Raises `Unknown`."""
        any_gpus = any(known(lambda h: h.host.gpus, other) for other in self.hosts)
        return engine_count(host.host, self.fleet.engines, any_gpus=any_gpus)

    def host(self, name: str) -> HostFact | None:
        """The host of that name."""
        return next((host for host in self.hosts if host.name == name), None)

    @property
    def simulated(self) -> bool:
        """Whether the engines are simulated. Raises `Unknown`."""
        return self.fleet.engines.runtime.kind == "simulated"

    def profile(self, name: str) -> Profile | None:
        """The profile of a name or path, None when it is not at hand."""
        if name not in self.profiles:
            try:
                self.profiles[name] = load_profile(name)
            except ProfileError:
                self.profiles[name] = None
        return self.profiles[name]

    def pace(self) -> tuple[Profile, float]:
        """The profile that stands for the engines, and the factor on its speeds.

        That of simulated engines, else the prior when the file names one. Raises `Unknown` when none is at hand.
        """
        runtime = self.fleet.engines.runtime
        if runtime.kind == "simulated":
            profile, speed = self.profile(runtime.profile), runtime.speed
        elif written(self.fleet, "profiles") and written(self.fleet.profiles, "prior"):
            profile, speed = self.profile(self.fleet.profiles.prior), 1.0
        else:
            raise Unknown("profiles.prior")
        if profile is None:
            raise Unknown("profile")
        return profile, speed

    def _hosts(self) -> Iterator[HostFact]:
        for host in known(lambda: self.fleet.hosts) or ():
            name = known(lambda h: h.name, host)
            if name is not None:
                yield HostFact(name, path_of(host), host, known(lambda h: host_address(h), host))

    def _engines(self, host: HostFact) -> list[EngineFact]:
        return [self._engine(host, index) for index in range(self.count(host))]

    def _engine(self, host: HostFact, index: int) -> EngineFact:
        engines = self.fleet.engines
        id_ = f"{host.name}/{index}"
        override = (known(lambda: engines.overrides) or {}).get(id_)
        own = override or EngineOverride()
        gpus = known(
            lambda: engine_gpus(host.host.gpus, engines.tensor_parallel, index) if own.gpus is None else own.gpus
        )
        pin = known(_pin, own)
        return EngineFact(
            id=id_,
            host=host,
            index=index,
            override=own,
            override_path=("engines", "overrides", id_) if override else None,
            port=known(lambda: _port(own, host.address or LOOPBACK, engines.port_base + index)),
            side_channel_port=known(lambda: own.side_channel_port or engines.side_channel_port_base + index),
            attest_port=None
            if known(lambda: self.simulated)
            else known(lambda: own.attest_port or engines.attest_port_base + index),
            gpus=None if gpus is None else tuple(gpus),
            pin=pin,
            args=(known(lambda: engines.args) or {}) | (known(lambda: own.args) or {}),
        )


def _pin(override: EngineOverride) -> Role | None:
    return override.pin


def _port(override: EngineOverride, address: str, port: int) -> int | None:
    try:
        return engine_endpoint(override, address, override.port or port)[1]
    except ValueError:  # a URL that is not one has a rule of its own
        return None
