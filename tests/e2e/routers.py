"""A router process in front of simulated engine processes."""

import contextlib
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

from narwhal.engine.launch import simulated_argv
from narwhal.fleet import Expanded, open_fleet
from tests.router.harness import Router, eventually, start_router, write_fleet


@dataclass
class Fleet:
    """A fleet that runs."""

    router: Router
    expanded: Expanded
    engines: list["subprocess.Popen[bytes]"]


def answers(url: str) -> bool:
    try:
        with urlopen(f"{url}/health", timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


@contextlib.contextmanager
def fleet_of(folder: Path, count: int, **options: object) -> Iterator[Fleet]:
    """`count` simulated engines, the first half prefill, and a router that is ready; all ended at the end."""
    path, port, admin_port = write_fleet(folder, [], count=count, **options)
    expanded = open_fleet(path)
    engines: list[subprocess.Popen[bytes]] = []
    router: Router | None = None
    try:
        for engine in expanded.engines:
            log = (folder / f"{engine.index}.log").open("wb")
            engines.append(subprocess.Popen(simulated_argv(expanded, engine), stdout=log, stderr=log))
            log.close()
        for engine in expanded.engines:
            eventually(lambda url=engine.url: answers(url), f"{engine.id}'s health")  # type: ignore[misc]
        router = start_router(folder, path, port, admin_port)
        eventually(router.ready, "the router's readiness")
        eventually(lambda: all(e["state"] == "live" for e in router.state()["engines"]), "the engines' life")
        yield Fleet(router, expanded, engines)
    finally:
        if router is not None:
            router.stop()
        for process in engines:
            process.terminate()
        for process in engines:
            process.wait(30)
