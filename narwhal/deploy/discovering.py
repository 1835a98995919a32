"""`narwhal discover`: the facts that gate A reads, from bare hosts over SSH, and a first fleet file from them."""

import json
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from narwhal.deploy.errors import DeployError
from narwhal.deploy.plainyaml import scalar
from narwhal.deploy.ssh import DEFAULT_PORT, known_host_line, ssh_command
from narwhal.documents import data_path
from narwhal.fleet.model import Ssh

_FACTS_S = 120.0
_AT_A_TIME = 20
_PACKAGE = "vllm==0.26.0"
_SHARED_CARD = ("  per_gpu: 2  # one card for both roles", "  gpu_memory_utilization: 0.45")


@dataclass(frozen=True, slots=True)
class Found:
    """A host that was looked at."""

    name: str
    ssh: Ssh
    """How it is reached, its key included."""
    facts: Mapping[str, Any]

    @property
    def gpus(self) -> list[Mapping[str, Any]]:
        """Its GPUs."""
        return list(self.facts.get("gpus") or ())

    @property
    def fabric(self) -> tuple[str, str] | None:
        """Interface and IPv4 address where KV is best sent: the fastest link that is up, else the one SSH comes by."""
        links = [link for link in self.facts.get("interfaces") or () if link.get("up") and _ipv4(link)]
        by_ssh = [link for link in links if self.ssh.address in link["addresses"]]
        told = sorted((link for link in links if link.get("speed_mbps")), key=lambda link: -int(link["speed_mbps"]))
        best = told[0] if told else next(iter(by_ssh or links), None)
        if best is None:
            return None
        if by_ssh and (best is by_ssh[0] or best.get("speed_mbps") == by_ssh[0].get("speed_mbps")):
            return str(by_ssh[0]["name"]), self.ssh.address
        return str(best["name"]), _ipv4(best)


def parse_target(text: str) -> Ssh:
    """`user@host`, `user@host:port` or `user@[v6]:port`. Raises `DeployError`."""
    found = re.fullmatch(r"([^@\s]+)@(?:\[([0-9A-Fa-f:.]+)\]|([^:@\s]+))(?::([0-9]{1,5}))?", text)
    port = int(found[4] or DEFAULT_PORT) if found else 0
    if not found or not 0 < port < 65536:
        raise DeployError("target", f"{text!r} names no host", hint="write user@host, or user@host:port")
    return Ssh(address=found[2] or found[3], user=found[1], port=port)


def look_at(hosts: Sequence[tuple[Ssh, str]]) -> list[Found]:
    """The facts of hosts, given with their confirmed keys, all at a time. Raises `DeployError` for one that fails."""
    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        facts = list(pool.map(lambda one: read_facts(*one), hosts))
    found: list[Found] = []
    for (ssh, key), told in zip(hosts, facts, strict=True):
        name = _name(str(told.get("hostname") or ssh.address), [one.name for one in found])
        found.append(Found(name, ssh.model_copy(update={"host_key": key}), told))
    return found


def read_facts(ssh: Ssh, key: str) -> Mapping[str, Any]:
    """What a host says of itself: gate A's script, run there by its `python3`; nothing is left there."""
    script = data_path("playbooks", "roles", "discover", "files", "facts.py").read_text()
    where = f"{ssh.user}@{ssh.address}"
    with tempfile.TemporaryDirectory(prefix="narwhal-discover-") as folder:
        known = Path(folder) / "known_hosts"
        known.write_text(known_host_line(ssh, key))
        argv = [*ssh_command(ssh, known), "python3 - --python python3 --path /opt --path /var/lib"]
        try:
            done = subprocess.run(argv, input=script, capture_output=True, text=True, timeout=_FACTS_S, check=False)
        except subprocess.TimeoutExpired:
            hint = f"ssh {where}: does it work at once?"
            raise DeployError("discover", f"{where} told nothing within {_FACTS_S:.0f} s", hint=hint) from None
    try:
        found: Mapping[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        hint = f"`ssh -p {ssh.port} {where} python3 --version` must work without a question"
        raise DeployError("discover", f"{where}: {said}", hint=hint) from None
    return found


def draft_fleet_file(found: Sequence[Found], *, name: str, model: str) -> str:
    """A first fleet file, which `narwhal validate` accepts; comments say what to look at."""
    with_gpus = [host for host in found if host.gpus]
    working = with_gpus or list(found)
    single = sum(max(1, len(host.gpus)) for host in working) < 2  # both roles need an engine
    counts = {host.name: max(1, len(host.gpus)) * (2 if single else 1) for host in working}
    total = sum(counts.values())
    router = next((host for host in found if host not in working), working[0])
    all_linked = all(host.fabric is not None for host in found)
    lines = [
        "# Drafted by `narwhal discover` from what the hosts say. Look at every line marked with <-, then:",
        "#   narwhal validate FILE && narwhal deploy FILE",
        "apiVersion: narwhal/v1",
        "kind: Fleet",
        f"metadata: {{name: {scalar(name)}{_python(found)}}}",
        "",
        "model:  # <- the name that clients say, and the checkpoint's directory, the same on every engine host",
        f"  name: {scalar(Path(model).name)}",
        f"  path: {scalar(model)}",
        "",
        "slo:  # <- what clients are promised",
        "  ttft_s: 2.0",
        "  tpot_s: 0.05",
        "",
        "hosts:  # <- `fabric` is where KV goes: the fastest link that is up",
        *(line for host in found for line in _host(host, counts, gpus=bool(with_gpus), fabric=all_linked)),
        "",
        "engines:",
        f"  runtime: {_runtime(bool(with_gpus))}",
        *(_SHARED_CARD if single and with_gpus else ()),
        "",
        "split:  # where it starts; the controller moves on from there",
        f"  prefill: {total // 2}",
        f"  decode: {total - total // 2}",
        "",
        "routers:",
        f"  primary: {router.name}",
        "  port: 8000  # on that host's loopback: `narwhal tunnel` brings it to you",
    ]
    return "\n".join(lines) + "\n"


def _host(host: Found, counts: Mapping[str, int], *, gpus: bool, fabric: bool) -> list[str]:
    ssh = host.ssh
    port = "" if ssh.port == DEFAULT_PORT else f"port: {ssh.port}, "
    way = f"address: {scalar(ssh.address)}, user: {scalar(ssh.user)}, {port}host_key: {scalar(ssh.host_key)}"
    lines = [f"  - name: {host.name}", f"    ssh: {{{way}}}"]
    if fabric and host.fabric is not None:
        interface, address = host.fabric
        lines.append(f"    fabric: {{interface: {scalar(interface)}, address: {scalar(address)}}}")
    if host.gpus:
        memory = min(gpu.get("memory_mib") or 0 for gpu in host.gpus)
        lines.append(
            f"    gpus: {len(host.gpus)}  # {host.gpus[0].get('product')}, driver {host.gpus[0].get('driver')}"
        )
        lines += [f"    gpu_memory_gib: {round(memory / 1024, 1)}"] if memory else []
    elif not gpus:
        lines.append(f"    engines: {counts[host.name]}")
    return lines


def _runtime(gpus: bool) -> str:
    if gpus:
        return f"{{kind: venv, package: {scalar(_PACKAGE)}}}  # <- `narwhal package --with-engine` brings it"
    return "{kind: simulated}  # no host has a GPU: engines that speak vLLM's dialect and compute nothing"


def _python(found: Sequence[Found]) -> str:
    """`metadata.python` when all hosts have the same."""
    versions = {".".join(str((host.facts.get("python") or {}).get("version") or "").split(".")[:2]) for host in found}
    version = versions.pop() if len(versions) == 1 else ""
    return f', python: "{version}"' if re.fullmatch(r"3\.1[1-9]", version) else ""


def _name(hostname: str, taken: Sequence[str]) -> str:
    """A name for a host: its own up to the first dot, made one that a fleet file takes."""
    is_address = bool(re.fullmatch(r"[0-9.:]+", hostname))
    short = hostname if is_address else hostname.partition(".")[0]
    name = re.sub(r"[^a-z0-9]+", "-", short.lower()).strip("-")[:60] or "host"
    return next(text for text in (name, *(f"{name}-{n}" for n in range(2, 999))) if text not in taken)


def _ipv4(link: Mapping[str, Any]) -> str:
    """The first IPv4 address of a link that others can reach; empty when it has none."""
    for text in link.get("addresses") or ():
        address = ip_address(text)
        if address.version == 4 and not address.is_loopback and not address.is_link_local:
            return str(text)
    return ""
