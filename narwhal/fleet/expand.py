"""Writing the fleet file's shorthand out: which engine runs where, on which GPUs and ports, in which role."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from narwhal.fleet.expanded import EngineSpec, Expanded, RouterSpec
from narwhal.fleet.model import EngineOverride, Engines, Fleet, Host, Role

LOOPBACK = "127.0.0.1"


def expand(fleet: Fleet, addresses: Mapping[str, str] | None = None) -> Expanded:
    """Every engine and router of a fleet.

    `addresses` gives fabric addresses by host name as discovered; a host without one there uses what the file says:
    its fabric address, else its SSH address, else loopback. The fleet is assumed to pass the rules; for one that
    does not the result has no meaning, and a split larger than the fleet leaves the rest as decode.
    """
    found = addresses or {}
    where = {host.name: found.get(host.name) or host_address(host) for host in fleet.hosts}
    bare = [engine for host in fleet.hosts for engine in _host_engines(fleet, host, where[host.name])]
    roles = assign_roles([(engine.id, engine.index, engine.pin) for engine in bare], fleet.split.prefill)
    devices = shared_devices((engine.host, engine.id, engine.gpus) for engine in bare)
    engines = tuple(replace(e, role=roles[e.id], shared_device=devices.get(e.id)) for e in bare)
    return Expanded(fleet=fleet, engines=engines, routers=tuple(_routers(fleet, where)))


def host_address(host: Host) -> str:
    """The address that peers reach a host by, as far as the file tells."""
    return host.fabric.address or (host.ssh.address if host.ssh else LOOPBACK)


def engine_count(host: Host, engines: Engines, *, any_gpus: bool) -> int:
    """How many engines a host runs.

    Its own `engines` first; else by its GPUs; else, in a fleet that has no GPU at all, `engines.per_host`.
    """
    if host.engines is not None:
        return host.engines
    if host.gpus:
        return host.gpus // engines.tensor_parallel * engines.per_gpu
    return 0 if any_gpus else engines.per_host


def engine_gpus(host_gpus: int, tensor_parallel: int, index: int) -> tuple[int, ...]:
    """GPUs of a host's engine `index`: groups of `tensor_parallel`, dealt out in turn; empty when none fits."""
    groups = host_gpus // tensor_parallel
    if not groups:
        return ()
    first = index % groups * tensor_parallel
    return tuple(range(first, first + tensor_parallel))


def assign_roles(engines: Iterable[tuple[str, int, Role | None]], prefill: int) -> dict[str, Role]:
    """Starting roles of engines given as (id, index on its host, pin).

    Pins first. The places that are left in prefill go round the hosts, the first engine of each, then the second:
    losing one host should not lose a whole role.
    """
    listed = list(engines)
    roles: dict[str, Role] = {id_: pin for id_, _, pin in listed if pin is not None}
    room = prefill - sum(role == "prefill" for role in roles.values())
    for id_, _, _ in sorted((e for e in listed if e[2] is None), key=lambda e: e[1]):
        roles[id_] = "prefill" if room > 0 else "decode"
        room -= 1
    return roles


def shared_devices(engines: Iterable[tuple[str, str, tuple[int, ...]]]) -> dict[str, str]:
    """Name of the group of engines that share a card, for each engine that does; engines as (host, id, GPUs).

    Engines that share through a third one are one group; it is called after its lowest GPU: `gpu-1:0`.
    """
    groups: list[_Group] = []
    for host, id_, gpus in engines:
        if not gpus:
            continue
        joined = _Group(host, {id_}, set(gpus))
        apart = []
        for group in groups:
            if group.host == host and group.gpus & joined.gpus:
                joined = _Group(host, group.ids | joined.ids, group.gpus | joined.gpus)
            else:
                apart.append(group)
        groups = [*apart, joined]
    return {id_: f"{g.host}:{min(g.gpus)}" for g in groups if len(g.ids) > 1 for id_ in g.ids}


def base_url(address: str, port: int, *, tls: bool = False) -> str:
    """The URL of a server, IPv6 addresses in brackets."""
    scheme = "https" if tls else "http"
    return f"{scheme}://[{address}]:{port}" if ":" in address else f"{scheme}://{address}:{port}"


def engine_endpoint(override: EngineOverride, address: str, port: int, *, tls: bool = False) -> tuple[str, int, str]:
    """Address, port and base URL of an engine: those of its own `url` when it has one."""
    if override.url is None:
        return address, port, base_url(address, port, tls=tls)
    parts = urlsplit(override.url)
    default = 443 if parts.scheme == "https" else 80
    return parts.hostname or address, parts.port or default, override.url.rstrip("/")


@dataclass(frozen=True, slots=True)
class _Group:
    host: str
    ids: set[str]
    gpus: set[int]


def _host_engines(fleet: Fleet, host: Host, address: str) -> Iterator[EngineSpec]:
    engines = fleet.engines
    any_gpus = any(other.gpus for other in fleet.hosts)
    for index in range(engine_count(host, engines, any_gpus=any_gpus)):
        override = engines.overrides.get(f"{host.name}/{index}", EngineOverride())
        number = override.port or engines.port_base + index
        at, port, url = engine_endpoint(override, address, number, tls=engines.tls is not None)
        gpus = override.gpus
        yield EngineSpec(
            id=f"{host.name}/{index}",
            host=host.name,
            index=index,
            address=at,
            port=port,
            side_channel_port=override.side_channel_port or engines.side_channel_port_base + index,
            attest_port=override.attest_port or engines.attest_port_base + index,
            url=url,
            gpus=engine_gpus(host.gpus, engines.tensor_parallel, index) if gpus is None else tuple(gpus),
            shared_device=None,
            role="decode",
            pin=override.pin,
            args=tuple(sorted((engines.args | override.args).items())),
        )


def _routers(fleet: Fleet, where: Mapping[str, str]) -> Iterator[RouterSpec]:
    routers = fleet.routers
    for host, standby in ((routers.primary, False), (routers.standby, True)):
        if host is None:
            continue
        binds = {"loopback": LOOPBACK, "fabric": where.get(host, LOOPBACK), "all": "0.0.0.0"}  # noqa: S104
        yield RouterSpec(
            host=host,
            standby=standby,
            address=LOOPBACK if routers.admin.bind == "loopback" else binds["fabric"],
            bind=binds[routers.bind],
            port=routers.standby_port if standby and routers.standby_port else routers.port,
            admin_bind=binds[routers.admin.bind],
            admin_port=routers.admin.standby_port if standby and routers.admin.standby_port else routers.admin.port,
        )
