"""What a fleet file comes to once its shorthand is written out: every engine and router with its addresses."""

from dataclasses import dataclass, replace
from pathlib import Path

from narwhal.fleet.model import Fleet, Role, Scalar


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One engine: who it is, where it listens, what it holds."""

    id: str
    """Its name everywhere: `HOST/INDEX`."""
    host: str
    index: int
    """Number of the engine on its host."""
    address: str
    """Fabric address that the router and its peers reach it by."""
    port: int
    side_channel_port: int
    attest_port: int
    """Of the sidecar that attests it, on the same address."""
    url: str
    """Base URL, without a trailing slash."""
    gpus: tuple[int, ...]
    """Indices of its GPUs on the host; empty on a host without."""
    shared_device: str | None
    """Name of the group of engines that share its card, such as `gpu-1:0`; None when it has the card alone."""
    role: Role
    """Role it starts with."""
    pin: Role | None
    """Role it never leaves."""
    args: tuple[tuple[str, Scalar], ...]
    """Further arguments of its server, sorted by name."""


@dataclass(frozen=True, slots=True)
class RouterSpec:
    """One router: where it runs and listens."""

    host: str
    standby: bool
    address: str
    """Address that its peer reaches it by."""
    bind: str
    """Address of the client listener; `0.0.0.0` for all."""
    port: int
    admin_bind: str
    admin_port: int


@dataclass(frozen=True, slots=True)
class Expanded:
    """A fleet file and all that follows from it."""

    fleet: Fleet
    engines: tuple[EngineSpec, ...]
    """In order of host, then index."""
    routers: tuple[RouterSpec, ...]
    """The primary first; in the process of one, that one."""
    folder: Path = Path()
    """Folder of the fleet file, which paths in it are relative to."""

    def of_router(self, *, standby: bool) -> "Expanded":
        """The same as one of the routers sees it: itself first. Raises `ValueError` when the file names no standby."""
        own = [router for router in self.routers if router.standby == standby]
        if not own:
            raise ValueError("the fleet file names no standby (routers.standby)")
        return replace(self, routers=(*own, *(router for router in self.routers if router.standby != standby)))

    @property
    def peer(self) -> RouterSpec | None:
        """The other router."""
        return self.routers[1] if len(self.routers) > 1 else None

    @property
    def on_one_host(self) -> bool:
        """Whether there are two routers, on one host."""
        return len({router.host for router in self.routers}) < len(self.routers)

    @property
    def share_port(self) -> bool:
        """Whether two routers of one host take turns on one port for clients."""
        return self.on_one_host and len({router.port for router in self.routers}) == 1

    @property
    def profiles(self) -> Path:
        """Where measured profiles are: `profiles.path`, else `profiles` beside the fleet file."""
        return self.folder / (self.fleet.profiles.path or "profiles")

    @property
    def urls(self) -> tuple[str, ...]:
        """Where its engines are reached."""
        return tuple(engine.url for engine in self.engines)

    def engine(self, engine_id: str) -> EngineSpec:
        """The engine of that id. Raises `KeyError`."""
        for engine in self.engines:
            if engine.id == engine_id:
                return engine
        raise KeyError(engine_id)
