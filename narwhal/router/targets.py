"""What Prometheus is told to scrape, by HTTP service discovery: routers, and the engines that are in the fleet now."""

from collections.abc import Iterable
from urllib.parse import urlsplit

import msgspec

from narwhal.fleet import EngineSpec, Expanded
from narwhal.fleet.expanded import RouterSpec
from narwhal.fleet.model import Fleet
from narwhal.router.callers import is_loopback

KIND = "__meta_narwhal_kind"
"""Label by which a scrape job tells `router` from `engine`; it does not outlive discovery."""


class Target(msgspec.Struct, frozen=True):
    """One entry of the list, as Prometheus reads it."""

    targets: list[str]
    """`HOST:PORT`."""
    labels: dict[str, str]


def targets(expanded: Expanded, engines: Iterable[EngineSpec]) -> list[Target]:
    """Targets as the first of the routers knows them.

    A router whose operators are on loopback tells of itself alone: who reads this could not reach another one.
    """
    fleet, own = expanded.fleet, expanded.routers[0]
    found = [_router(fleet, own)]
    if not is_loopback(own.admin_bind):
        found += [_router(fleet, router) for router in expanded.routers[1:]]
    elif expanded.on_one_host:
        found += [_router(fleet, router) for router in expanded.routers[1:] if router.host == own.host]
    return found + [_engine(fleet, engine) for engine in engines]


def admin_address(router: RouterSpec) -> tuple[str, int]:
    """Address and port that a router's admin listener is reached at, from where it may be."""
    everywhere = router.admin_bind == "0.0.0.0"  # noqa: S104
    return router.address if everywhere else router.admin_bind, router.admin_port


def _router(fleet: Fleet, router: RouterSpec) -> Target:
    labels = {
        "fleet": fleet.metadata.name,
        "router": "standby" if router.standby else "primary",
        "host": router.host,
        "__scheme__": "https" if fleet.routers.admin.tls is not None else "http",
        KIND: "router",
    }
    return Target([_place(*admin_address(router))], labels)


def _engine(fleet: Fleet, engine: EngineSpec) -> Target:
    labels = {
        "fleet": fleet.metadata.name,
        "engine": engine.id,
        "host": engine.host,
        "__scheme__": urlsplit(engine.url).scheme,
        KIND: "engine",
    }
    return Target([_place(engine.address, engine.port)], labels)


def _place(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
