"""The fleet that a drill needs, and its fleet file."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from narwhal.dev import free_run

MODEL = "drill"
PRIMARY, STANDBY = "primary", "standby"
LOCAL = "local"
DISK = "disk"
"""Folder of the journal, where that is on a disk of its own."""
Section = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """How a fleet is made; the first `prefill` engines hold prefill."""

    engines: int = 4
    prefill: int = 2
    speed: float = 2.0
    """Of simulated engines, relative to their profile."""
    seats: int = 64
    """Most streams of an engine at a time."""
    standby: bool = False
    """Whether there is a second router."""
    apart: Literal["", "engines", "routers"] = ""
    """What has a network namespace of its own: each engine, or each router."""
    store: Literal["file", "etcd"] = "file"
    """Where the lease is held."""
    given_socket: bool = False
    """Whether both routers get one listening socket for clients, as systemd gives it."""
    small_disk: bool = False
    """Whether the journal is on a disk of its own, which is small."""
    kv_lease_s: float = 30.0
    model_path: str = "/models/drill"
    runtime: Section = field(default_factory=dict)
    """Of real engines; empty: simulated ones."""
    args: Section = field(default_factory=dict)
    """Further arguments of the engines."""
    slo: Section = field(default_factory=lambda: {"ttft_s": 10.0, "tpot_s": 1.0})
    serving: Section = field(default_factory=lambda: {"admission": "open"})
    recovery: Section = field(default_factory=dict)
    controller: Section = field(default_factory=lambda: {"enabled": False})

    @property
    def needs(self) -> tuple[str, ...]:
        """What the machine must have for it."""
        needs = []
        if self.apart:
            needs += ["root", "ip", "nsenter"]
        if self.apart == "routers":
            needs += ["openssl"]
        if self.small_disk:
            needs += ["root"]
        if self.store == "etcd":
            needs += ["etcd"]
        return tuple(needs)


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the parts of a fleet are."""

    engines: tuple[str, ...]
    """Address of each engine's host; one: all are on this one."""
    routers: Mapping[str, str] = field(default_factory=dict)
    """Address of each router's host, where each has one of its own."""
    store: str = ""
    """URL of the lease's store."""
    certificate: str = ""
    """Path of the routers' certificate, where they need one; its key is beside it."""


def write_fleet(folder: Path, plan: Plan, at: Addresses) -> Path:
    """Write the fleet file of a plan, with ports that are free now."""
    path = folder / "fleet.yaml"
    path.write_text(json.dumps(_document(folder, plan, at), indent=1) + "\n")  # JSON is YAML
    return path


def _document(folder: Path, plan: Plan, at: Addresses) -> dict[str, Any]:
    first = free_run(4 + 2 * plan.engines)
    return {
        "apiVersion": "narwhal/v1",
        "kind": "Fleet",
        "metadata": {"name": "drill"},
        "model": {"name": MODEL, "path": plan.model_path},
        "slo": dict(plan.slo),
        "hosts": _hosts(plan, at),
        "engines": {
            "runtime": dict(plan.runtime) or {"kind": "simulated", "profile": "demo", "speed": plan.speed},
            "args": dict(plan.args),
            "max_model_len": 4096,
            "max_num_seqs": plan.seats,
            "kv_lease_s": plan.kv_lease_s,
            "port_base": first + 4,
            "side_channel_port_base": first + 4 + plan.engines,
        },
        "split": {"prefill": plan.prefill, "decode": plan.engines - plan.prefill},
        "routers": _routers(folder, plan, at, first),
        "lease": {"backend": "etcd", "endpoints": [at.store]} if plan.store == "etcd" else {"backend": "file"},
        "controller": dict(plan.controller),
        "serving": dict(plan.serving),
        "recovery": dict(plan.recovery),
        "observability": {"journal": {"path": str(folder / DISK / "journal")} if plan.small_disk else {}},
    }


def _hosts(plan: Plan, at: Addresses) -> list[dict[str, Any]]:
    each = 1 if len(at.engines) > 1 else plan.engines
    hosts = [{"name": f"host-{n}", "fabric": {"address": a}, "engines": each} for n, a in enumerate(at.engines)]
    if len(hosts) == 1:
        hosts[0]["name"] = LOCAL
    return hosts + [{"name": name, "fabric": {"address": a}, "engines": 0} for name, a in at.routers.items()]


def _routers(folder: Path, plan: Plan, at: Addresses, first: int) -> dict[str, Any]:
    admin: dict[str, Any] = {"port": first + 1}
    home = LOCAL if len(at.engines) == 1 else "host-0"
    routers: dict[str, Any] = {"primary": PRIMARY if at.routers else home, "port": first, "admin": admin}
    if plan.standby:
        routers["standby"] = STANDBY if at.routers else home
        admin["standby_port"] = first + 3
        if not plan.given_socket:
            routers["standby_port"] = first + 2
    if at.routers:
        token = folder / "standby.token"
        token.write_text("of-a-drill-and-of-no-use-elsewhere\n")
        token.chmod(0o600)
        routers["bind"] = admin["bind"] = "fabric"
        admin["tokens"] = [{"name": "standby", "scope": "replicate", "token": {"file": str(token)}}]
        admin["tls"] = {"cert": at.certificate, "key": str(Path(at.certificate).with_suffix(".key"))}
    return routers
