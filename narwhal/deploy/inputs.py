"""The inputs of the gates by name and digest: `model`, `slo`, `host:gpu-1`, `launch:gpu-1/0`, `playbook:b-install`."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence

from narwhal.deploy.content import Wanted, host_key, launch_records, static_files
from narwhal.deploy.gates import GATES, ROUTER_SECTIONS, Gate
from narwhal.deploy.manifest import digest, tree_of
from narwhal.documents import Model
from narwhal.fleet.expand import host_address

PER_HOST = ("host", "address", "launch", "ports")
"""Inputs of which every host, or each of its engines, has one."""


def inputs_of(wanted: Wanted) -> dict[str, str]:
    """The digest of every input, by name."""
    return {name: digest(_text(value)) for name, value in _values(wanted)} | _playbooks()


def of_gate(gate: Gate, inputs: Mapping[str, str]) -> dict[str, str]:
    """Those of the inputs that a gate depends on, its playbook and roles among them."""
    kinds = {*gate.inputs}
    mine = f"playbook:{gate.name}"
    return {name: value for name, value in inputs.items() if name.partition(":")[0] in kinds or name == mine}


def host_of(name: str) -> str | None:
    """The host that an input is about; None: all of them."""
    kind, _, rest = name.partition(":")
    return rest.partition("/")[0] if kind in PER_HOST else None


def spoken(names: Sequence[str]) -> str:
    """Inputs in words: `model, launch of gpu-1/0 and 3 more`."""
    words = []
    for kind in dict.fromkeys(name.partition(":")[0] for name in names):
        which = [name.partition(":")[2] for name in names if name.partition(":")[0] == kind]
        if kind == "playbook":
            words.append("its playbook or roles")
        elif which == [""]:
            words.append(kind)
        else:
            more = f" and {len(which) - 1} more" if len(which) > 1 else ""
            words.append(f"{kind} {which[0]}{more}" if kind == "host" else f"{kind} of {which[0]}{more}")
    return ", ".join(words)


def _values(wanted: Wanted) -> Iterator[tuple[str, object]]:
    expanded = wanted.expanded
    fleet = expanded.fleet
    for host in wanted.fleet.hosts:  # as declared: gate A is not stale for what it found itself
        yield f"host:{host.name}", [host, host_key(host, wanted.host_keys)]
    for host in fleet.hosts:
        yield f"address:{host.name}", host_address(host)
    yield "model", fleet.model
    yield "revision", fleet.metadata.revision
    yield "python", fleet.metadata.python
    yield "runtime", fleet.engines.runtime
    for engine, record in launch_records(expanded).items():
        yield f"launch:{engine}", record.model_copy(update={"revision": None})  # it has a name of its own
    for spec in expanded.engines:
        yield f"ports:{spec.id}", [spec.port, spec.side_channel_port, spec.attest_port]
    yield "access", [fleet.engines.api_key, fleet.engines.tls]
    for name in ("slo", "profiles", "lease", "benchmark"):
        yield name, getattr(fleet, name)
    for name in ROUTER_SECTIONS:
        yield name, fleet.metadata.labels if name == "labels" else getattr(fleet, name)


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=_plain)


def _plain(value: object) -> object:
    if isinstance(value, Model):
        return value.model_dump(mode="json", by_alias=True)
    raise TypeError(f"no input: {value!r}")


def _playbooks() -> dict[str, str]:
    """One digest for each gate's playbook and all roles that it comes to."""
    files = static_files()
    roles = sorted({path.split("/")[1] for path in files if path.startswith("roles/")})
    found = {}
    for gate in GATES:
        chosen = {path: data for path, data in files.items() if path == gate.playbook}
        waiting = list(chosen)
        while waiting:
            text = files[waiting.pop()].decode(errors="replace")
            for role in roles:
                mine = {path: data for path, data in files.items() if path.startswith(f"roles/{role}/")}
                if not mine.keys() <= chosen.keys() and _names(text, role):
                    waiting += mine
                    chosen |= mine
        found[f"playbook:{gate.name}"] = tree_of(chosen)
    return found


def _names(text: str, role: str) -> bool:
    """Whether a playbook or a role's file names a role."""
    return (
        re.search(rf"(?:\brole:|\bname:|^\s*-)\s*[\"']?{re.escape(role)}[\"']?\s*(?:[,}}]|$)", text, re.M) is not None
    )
