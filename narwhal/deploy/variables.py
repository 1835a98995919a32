"""What Ansible is told of a fleet: inventory, variables of all hosts, variables of each.

The roles' `argument_specs` say what each variable means; a test renders the example fleets against them.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from narwhal.deploy.plainyaml import Data
from narwhal.fleet import EngineSpec, Expanded
from narwhal.fleet.expand import host_address
from narwhal.fleet.model import EtcdLease, FileLease, Fleet, Host
from narwhal.fleet.places import NARWHAL_HOME, admin_socket

USER = "narwhal"
STATE = "/var/lib/narwhal"
ETC = "/etc/narwhal"
_CLOCK_TOLERANCE_S = 0.5
_HANDOVER_S = 20
"""How long a router that ends may take to hand over, and then to close."""
_RUNTIME_KEYS = ("kind", "package", "path", "device", "image", "tool", "profile", "speed")
_SSH_ARGS = "-o UserKnownHostsFile='\"{{ inventory_dir }}/known_hosts\"' -o StrictHostKeyChecking=yes"
"""No key that was not pinned or confirmed, wherever the directory lies and whatever `~/.ssh` knows."""


def inventory(expanded: Expanded) -> Data:
    """`inventory.yml`: every host, and which have engines and routers."""
    engines = {engine.host for engine in expanded.engines}
    routers = {router.host for router in expanded.routers}
    names = [host.name for host in expanded.fleet.hosts]
    groups: dict[str, Data] = {
        "fleet": {"hosts": {host.name: _connection(host) for host in expanded.fleet.hosts}},
        "engines": {"hosts": {name: {} for name in names if name in engines}},
        "routers": {"hosts": {name: {} for name in names if name in routers}},
    }
    return {"all": {"children": groups, "vars": {"ansible_ssh_common_args": _SSH_ARGS}}}


def group_vars(expanded: Expanded) -> Data:
    """`group_vars/all.yml`: what holds for the whole fleet."""
    fleet = expanded.fleet
    runtime = fleet.engines.runtime
    lease = fleet.lease
    python = fleet.metadata.python
    return {
        "narwhal_fleet": fleet.metadata.name,
        "narwhal_fleet_digest": fleet.digest(),
        "narwhal_revision": fleet.metadata.revision,
        "narwhal_bundle": "{{ playbook_dir }}/bundle.tar",
        "narwhal_user": USER,
        "narwhal_home": NARWHAL_HOME,
        "narwhal_state": STATE,
        "narwhal_etc": ETC,
        "narwhal_python": f"python{python}" if python else "python3",
        "narwhal_model": fleet.model.model_dump(),
        "narwhal_runtime": {key: getattr(runtime, key, None) for key in _RUNTIME_KEYS},
        "narwhal_clock_tolerance_s": _CLOCK_TOLERANCE_S,
        "narwhal_lease": {
            "backend": lease.backend,
            "endpoints": list(lease.endpoints) if isinstance(lease, EtcdLease) else [],
            "tls": lease.tls.model_dump() if isinstance(lease, EtcdLease) and lease.tls else None,
        },
        "narwhal_profiles": str(PurePosixPath(ETC) / (fleet.profiles.path or "profiles")),
        "narwhal_serving": {
            "stop_s": math.ceil(fleet.serving.shutdown_s) + _HANDOVER_S,
            "resume": fleet.recovery.state_path is not None,
            "folders": _written_folders(fleet),
        },
    }


def host_vars(expanded: Expanded, host: Host) -> Data:
    """`host_vars/HOST.yml`: engines, routers and links of one host."""
    return {
        "narwhal_fabric": {
            "interface": host.fabric.interface,
            "address": host.fabric.address if host.fabric.interface else host_address(host),
        },
        "narwhal_gpus": host.gpus,
        "narwhal_engines": [_engine(expanded, engine) for engine in launched(expanded) if engine.host == host.name],
        "narwhal_routers": [
            {
                "role": "standby" if router.standby else "primary",
                "port": router.port,
                "bind": router.bind,
                "admin_port": router.admin_port,
                "admin_bind": router.admin_bind,
                "socket": str(admin_socket(expanded.of_router(standby=router.standby), Path(STATE))),
            }
            for router in expanded.routers
            if router.host == host.name
        ],
        "narwhal_links": list(_links(expanded, host)),
    }


def _written_folders(fleet: Fleet) -> list[str]:
    """Folders that a router writes to by the fleet file's word, where they are not below its state's."""
    lease = fleet.lease.path if isinstance(fleet.lease, FileLease) else None
    files = (fleet.recovery.state_path, lease, fleet.routers.admin.socket)
    folders = [fleet.observability.journal.path, *(str(Path(file).parent) for file in files if file)]
    found = {folder for folder in folders if folder and Path(folder).is_absolute()}
    return sorted(folder for folder in found if not Path(folder).is_relative_to(STATE))


def launched(expanded: Expanded) -> Sequence[EngineSpec]:
    """The engines that Narwhal starts: all but those with a `url` of their own."""
    overrides = expanded.fleet.engines.overrides
    return [e for e in expanded.engines if e.id not in overrides or overrides[e.id].url is None]


def launch_path(engine: EngineSpec) -> str:
    """Where an engine's launch record is in the rendered directory."""
    return f"files/launch/{engine.host}-{engine.index}.json"


def _connection(host: Host) -> Data:
    if host.ssh is None:
        return {"ansible_connection": "local"}
    return {"ansible_host": host.ssh.address, "ansible_port": host.ssh.port, "ansible_user": host.ssh.user}


def _engine(expanded: Expanded, engine: EngineSpec) -> Data:
    simulated = expanded.fleet.engines.runtime.kind == "simulated"
    return {
        "name": engine.id,
        "index": engine.index,
        "port": engine.port,
        "side_channel_port": engine.side_channel_port,
        "sidecar_port": None if simulated else engine.attest_port,
        "gpus": list(engine.gpus),
        "launch": launch_path(engine),
    }


def _links(expanded: Expanded, host: Host) -> Iterator[Data]:
    """The hosts that KV goes to from this one, at their fabric addresses."""
    engines = {engine.host: engine.address for engine in launched(expanded)}
    if host.name in engines:
        yield from ({"peer": peer, "address": address} for peer, address in engines.items() if peer != host.name)
