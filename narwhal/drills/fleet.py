"""A fleet of a drill's own: engines, routers and what they need, as processes, in one folder."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from narwhal.dev import free_run
from narwhal.drills.clients import Clients
from narwhal.drills.drill import UnavailableError, eventually, expect
from narwhal.drills.network import Network, open_network
from narwhal.drills.plan import DISK, LOCAL, PRIMARY, STANDBY, Addresses, Plan, write_fleet
from narwhal.drills.processes import Process
from narwhal.drills.router import Router
from narwhal.drills.web import etcd_value, get, metric, post
from narwhal.engine.launch import simulated_argv
from narwhal.engine.record import write_launch
from narwhal.engine.render import render_launch
from narwhal.fleet import EngineSpec, Expanded, open_fleet
from narwhal.fleet.model import SimulatedRuntime

_START_PATIENCE_S = 900.0
"""How long an engine may take to start: real ones take half a minute alone, several on a busy machine far longer."""
_DISK = "2m"
"""Size of a small disk."""


@dataclass
class Engine:
    """An engine process."""

    spec: EngineSpec
    process: Process

    @property
    def id(self) -> str:
        """Its name in the fleet."""
        return self.spec.id

    def answers(self) -> bool:
        """Whether it says that it is healthy."""
        try:
            return get(f"{self.spec.url}/health", 5.0)[0] == 200
        except OSError:
            return False

    def start(self) -> None:
        """Start it, or start it again, and wait until it answers."""
        self.process.start()
        self.wait()

    def wait(self) -> None:
        """Wait until it answers. Raises `DrillError` when its process ends before that."""

        def answers() -> bool:
            expect(self.process.runs, f"engine {self.id} ended: {self.process.tail()}")
            return self.answers()

        eventually(answers, f"the health of engine {self.id}", patience_s=_START_PATIENCE_S)

    def metric(self, name: str) -> float:
        """The sum of a metric's samples."""
        return metric(get(f"{self.spec.url}/metrics")[1].decode(), name)

    def fault(self, **what: Any) -> None:
        """Let it have a fault of `narwhal engine simulate`."""
        post(f"{self.spec.url}/simulate/faults", what)

    def recover(self) -> None:
        """End its faults."""
        post(f"{self.spec.url}/simulate/faults", None, method="DELETE")

    def peer_name(self, model: str) -> str:
        """What its peers call the process: its NIXL engine id."""
        body = {"model": model, "prompt": "who", "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
        params = post(f"{self.spec.url}/v1/completions", body)["kv_transfer_params"]
        return str(params["remote_engine_id"])


@dataclass
class Fleet:
    """A fleet that serves."""

    folder: Path
    plan: Plan
    expanded: Expanded
    engines: list[Engine]
    routers: dict[str, Router]
    network: Network | None = None
    store: Process | None = None
    """The lease's store, where it is a process."""
    store_url: str = ""
    stack: ExitStack = field(default_factory=ExitStack)

    @property
    def real(self) -> bool:
        """Whether its engines are real ones."""
        return not isinstance(self.expanded.fleet.engines.runtime, SimulatedRuntime)

    @property
    def model(self) -> str:
        """What clients call its model."""
        return self.expanded.fleet.model.name

    @property
    def primary(self) -> Router:
        """The router that leads at first."""
        return self.routers[PRIMARY]

    @property
    def standby(self) -> Router:
        """The one that takes over."""
        return self.routers[STANDBY]

    def clients(self, count: int = 4, *, of: Sequence[Router] = (), pause_s: float = 0.0, **more: Any) -> Clients:
        """Clients of these routers, of the primary where none is named; fewer and slower ones for real engines."""
        if self.real:
            count, pause_s = min(count, 2), max(pause_s, 0.3)
        addresses = [router.address for router in of or (self.primary,)]
        return Clients(addresses, self.model, count, pause_s=pause_s, **more)

    def of_role(self, role: str) -> list[Engine]:
        """The engines that have a role at the start."""
        return [engine for engine in self.engines if engine.spec.role == role]

    def role_map(self) -> bytes:
        """The role map as etcd has it."""
        return etcd_value(self.store_url, "/narwhal/drill/map")


def check_needs(plan: Plan) -> None:
    """Raise `UnavailableError` when this machine lacks what a plan needs."""
    hints = {
        "ip": "install it: apt-get install iproute2",
        "nsenter": "install it: apt-get install util-linux",
        "openssl": "install it: apt-get install openssl",
        "etcd": "install it: apt-get install etcd-server",
    }
    for need in plan.needs:
        if need == "root":
            if os.geteuid() != 0:
                raise UnavailableError("it makes network namespaces or mounts a disk, which takes root: use sudo")
        elif shutil.which(need) is None:
            raise UnavailableError(f"{need} is not here; {hints[need]}")


@contextmanager
def open_fleet_of(folder: Path, plan: Plan) -> Iterator[Fleet]:
    """Start what a plan says, wait until it serves, and end all of it. Raises `UnavailableError` and `DrillError`."""
    check_needs(plan)
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        network = stack.enter_context(open_network(folder)) if plan.apart else None
        at = _addresses(folder, plan, network)
        store = _start_store(folder, at.store, stack) if plan.store == "etcd" else None
        path = write_fleet(folder, plan, at)
        expanded = open_fleet(path)
        fleet = Fleet(folder, plan, expanded, [], {}, network, store, at.store, stack)
        for spec in expanded.engines:
            argv = [*_on(network, spec.address), *_engine_argv(folder, expanded, spec)]
            process = Process(spec.id.replace("/", "-"), argv, folder)
            stack.callback(process.kill)
            process.start()
            fleet.engines.append(Engine(spec, process))
        for engine in fleet.engines:
            engine.wait()
        _start_routers(fleet, path, at)
        yield fleet


def _engine_argv(folder: Path, expanded: Expanded, spec: EngineSpec) -> list[str]:
    """The command that starts an engine."""
    if isinstance(expanded.fleet.engines.runtime, SimulatedRuntime):
        return simulated_argv(expanded, spec)
    launch = folder / f"launch-{spec.index}.json"
    write_launch(render_launch(expanded, spec), launch)
    return [sys.executable, "-m", "narwhal", "engine", "run", "--launch", str(launch)]


def _addresses(folder: Path, plan: Plan, network: Network | None) -> Addresses:
    if network is None:
        return Addresses(("127.0.0.1",), store=_store_url("127.0.0.1"))
    hosts = [f"10.0.0.{10 + n}" for n in range(plan.engines if plan.apart == "engines" else 2)]
    for host in hosts:
        network.add(host)
    if plan.apart == "engines":
        return Addresses((*hosts,))
    certificate = folder / "routers.pem"
    words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    words += ["-subj", "/CN=drill", "-addext", "subjectAltName=" + ",".join(f"IP:{host}" for host in hosts)]
    words += ["-keyout", str(certificate.with_suffix(".key")), "-out", str(certificate)]
    subprocess.run(["openssl", *words], check=True, capture_output=True)
    routers = dict(zip((PRIMARY, STANDBY), hosts, strict=True))
    return Addresses((network.hub,), routers, _store_url(network.hub), str(certificate))


def _store_url(address: str) -> str:
    return f"http://{address}:{free_run(1)}"


def _on(network: Network | None, address: str) -> list[str]:
    return [] if network is None else network.on(address)


def _start_store(folder: Path, url: str, stack: ExitStack) -> Process:
    """An etcd member, whose data outlives its process."""
    own = _store_url("127.0.0.1")
    argv = ["etcd", "--name", "one", "--data-dir", str(folder / "etcd"), "--log-level", "error"]
    argv += ["--listen-client-urls", url, "--advertise-client-urls", url]
    argv += ["--listen-peer-urls", own, "--initial-advertise-peer-urls", own, "--initial-cluster", f"one={own}"]
    process = Process("etcd", argv, folder)
    stack.callback(process.kill)
    process.start()
    eventually(lambda: _answers(url), "etcd's health")
    return process


def _answers(url: str) -> bool:
    try:
        return get(f"{url}/health", 5.0)[0] == 200
    except OSError:
        return False


def _start_routers(fleet: Fleet, path: Path, at: Addresses) -> None:
    plan, listener = fleet.plan, None
    if plan.given_socket:
        listener = socket.create_server(("127.0.0.1", fleet.expanded.routers[0].port), backlog=1024)
        fleet.stack.callback(listener.close)
    for name in (PRIMARY, STANDBY) if plan.standby else (PRIMARY,):
        on = _on(fleet.network, at.routers.get(name, LOCAL))
        if plan.small_disk:
            on = _small_disk(fleet.folder / DISK)
        given = None if listener is None else listener.fileno()
        router = Router(fleet.folder, path, fleet.expanded, standby=name == STANDBY, on=on, socket=given)
        fleet.routers[name] = router
        fleet.stack.callback(router.process.kill)
        router.process.start()
        if name == PRIMARY:
            eventually(router.ready, "the router's readiness")
            eventually(router.all_live, "the life of all engines")
        else:
            eventually(router.follows, "the standby's following")


def _small_disk(folder: Path) -> list[str]:
    """What a command begins with to find a small disk at a folder, in a mount namespace of its own."""
    folder.mkdir(mode=0o700)
    script = f'mount -t tmpfs -o size={_DISK},mode=700 tmpfs "$0" && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", script, str(folder)]
