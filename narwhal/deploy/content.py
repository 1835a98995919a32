"""What a fleet renders to: every file of the directory, from the fleet file, what gate A found, and the playbooks."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from narwhal.deploy.fleetfile import with_addresses
from narwhal.deploy.plainyaml import yaml_text
from narwhal.deploy.ssh import known_host_line
from narwhal.deploy.variables import group_vars, host_vars, inventory, launch_path, launched
from narwhal.documents import data_path
from narwhal.engine.record import EngineLaunch
from narwhal.engine.render import render_launch
from narwhal.fleet import Expanded, expand
from narwhal.fleet.model import Fleet, Host

_ANSIBLE_CFG = """\
[defaults]
inventory = inventory.yml
roles_path = roles
callback_plugins = callback_plugins
callbacks_enabled = narwhal_jsonl
host_key_checking = True
gathering = explicit
forks = 20
interpreter_python = /usr/bin/python3
inject_facts_as_vars = False
retry_files_enabled = False
nocows = True

[ssh_connection]
pipelining = True
ssh_args = -o ControlMaster=auto -o ControlPersist=60s -o ServerAliveInterval=5 -o ServerAliveCountMax=3
"""
_LINT = """\
profile: production
offline: true
exclude_paths: [files/]
"""
_GITIGNORE = """\
# What a run leaves beside what is rendered: evidence with facts of hosts, bundles, the lock.
/evidence/
/bundle.tar
/.lock
"""
_NOT_COPIED = (".gitkeep", "README.md", "__pycache__")


@dataclass(frozen=True, slots=True)
class Wanted:
    """A fleet that is to be rendered."""

    fleet: Fleet
    text: str
    """The fleet file, as the operator wrote it but for a revision that is frozen."""
    addresses: Mapping[str, str] = field(default_factory=dict)
    """Fabric addresses that gate A found, by host."""
    host_keys: Mapping[str, str] = field(default_factory=dict)
    """Host keys that the operator confirmed, by host; those of the fleet file come first."""

    @property
    def expanded(self) -> Expanded:
        """The fleet as its hosts get it: with the addresses that were found."""
        hosts = [self._host(host) for host in self.fleet.hosts]
        return expand(self.fleet.model_copy(update={"hosts": hosts}))

    def _host(self, host: Host) -> Host:
        if host.fabric.address is not None or host.name not in self.addresses:
            return host
        return host.model_copy(update={"fabric": host.fabric.model_copy(update={"address": self.addresses[host.name]})})


def render_files(wanted: Wanted) -> dict[str, bytes]:
    """Every file by its path in the directory, `MANIFEST.json` left out: the same bytes for the same input."""
    files = {path: content.encode() for path, content in _rendered(wanted)}
    return dict(sorted((files | static_files()).items()))


def static_files() -> dict[str, bytes]:
    """Playbooks, roles and plugins, which are copied as they are shipped."""
    root = data_path("playbooks")
    found = {}
    for path in sorted(root.rglob("*")):
        relative = path.relative_to(root)
        if path.is_file() and not any(part in _NOT_COPIED for part in relative.parts):
            found[relative.as_posix()] = path.read_bytes()
    return found


def launch_records(expanded: Expanded) -> dict[str, EngineLaunch]:
    """The launch record of each engine that Narwhal starts, by the engine's id."""
    return {engine.id: render_launch(expanded, engine, deployed=True) for engine in launched(expanded)}


def known_hosts(fleet: Fleet, confirmed: Mapping[str, str]) -> str:
    """`known_hosts`: the keys that were pinned or confirmed, and no other."""
    lines = []
    for host in fleet.hosts:
        key = host_key(host, confirmed)
        if host.ssh is not None and key is not None:
            lines.append(known_host_line(host.ssh, key))
    return "".join(lines)


def host_key(host: Host, confirmed: Mapping[str, str]) -> str | None:
    """The key that a host must show: that of the fleet file, else the one the operator confirmed."""
    pinned = host.ssh.host_key if host.ssh else None
    return pinned or confirmed.get(host.name)


def _rendered(wanted: Wanted) -> Iterator[tuple[str, str]]:
    expanded = wanted.expanded
    yield ".ansible-lint", _LINT
    yield ".gitignore", _GITIGNORE
    yield "ansible.cfg", _ANSIBLE_CFG
    yield "known_hosts", known_hosts(wanted.fleet, wanted.host_keys)
    yield "inventory.yml", yaml_text(inventory(expanded))
    yield "group_vars/all.yml", yaml_text(group_vars(expanded))
    for host in expanded.fleet.hosts:
        yield f"host_vars/{host.name}.yml", yaml_text(host_vars(expanded, host))
    yield "files/fleet.yaml", with_addresses(wanted.text, wanted.fleet, wanted.addresses)
    records = launch_records(expanded)
    for engine in launched(expanded):
        yield launch_path(engine), records[engine.id].text()
    yield "files/prometheus/targets.json", _targets(expanded)


def _targets(expanded: Expanded) -> str:
    """Targets for Prometheus' file discovery: engines at the fabric, routers at their admin listeners."""
    fleet = expanded.fleet.metadata.name
    groups = [
        {"targets": [_target(engine.address, engine.port)], "labels": {"fleet": fleet, "engine": engine.id}}
        for engine in expanded.engines
    ]
    groups += [
        {
            "targets": [_target(router.address, router.admin_port)],
            "labels": {"fleet": fleet, "router": router.host, "role": "standby" if router.standby else "primary"},
        }
        for router in expanded.routers
    ]
    return json.dumps(groups, indent=2) + "\n"


def _target(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
