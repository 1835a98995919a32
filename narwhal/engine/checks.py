"""What must hold before an engine is started. Nothing here starts one."""

import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from narwhal.engine.packages import package_versions
from narwhal.engine.record import EngineLaunch, LaunchError
from narwhal.engine.starting import read_secret, start_environment
from narwhal.engine.tree import tree_digest

Status = Literal["ok", "FAIL", "SKIP", "WARN"]
_IMPORT_DEADLINE_S = 300.0
_CONNECTOR = """
import sys
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
found = KVConnectorFactory.get_connector_class_by_name(sys.argv[1])
import nixl._api
print(f"{found.__module__}.{found.__qualname__}")
"""


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check."""

    name: str
    status: Status
    reason: str
    next_step: str = ""
    """What to do about it; empty when there is nothing to do."""


def check_launch(launch: EngineLaunch, *, leave_out: Sequence[str] = ()) -> list[Check]:
    """Every check of a launch record on this host, in order; those of `leave_out` are not made."""
    return [check(launch) for name, check in CHECKS.items() if name not in leave_out]


def check_executable(launch: EngineLaunch) -> Check:
    """The program is there."""
    program = launch.container.tool if launch.container else launch.argv[0]
    if shutil.which(program) is None:
        return Check("executable", "FAIL", f"{program} is not there or not executable", _install(launch))
    return Check("executable", "ok", program)


def check_packages(launch: EngineLaunch) -> Check:
    """The packages are there, in the versions of the record."""
    if launch.container or launch.program == "simulated":
        where = "they are in the image" if launch.container else "a simulated engine is part of narwhal"
        return Check("packages", "SKIP", where)
    wanted = dict(launch.packages) | ({"nixl": launch.packages.get("nixl", "")} if launch.connector else {})
    try:
        found = package_versions(launch.argv[0], list(wanted))
    except (OSError, ValueError) as error:
        return Check("packages", "FAIL", f"{launch.argv[0]} does not tell its packages: {error}", _install(launch))
    wrong = [
        f"{name} is {found[name] or 'missing'}" + (f", not {version}" if version else "")
        for name, version in wanted.items()
        if found[name] is None or (version and not _same_version(found[name] or "", version))
    ]
    if wrong:
        return Check("packages", "FAIL", "; ".join(wrong), _install(launch))
    return Check("packages", "ok", ", ".join(f"{name} {version}" for name, version in found.items()))


def check_connector(launch: EngineLaunch) -> Check:
    """The connector's class can be imported by the engine's own Python, and NIXL with it."""
    if launch.connector is None or launch.container:
        return Check("connector", "SKIP", "it is in the image" if launch.container else "a simulated engine needs none")
    argv = [launch.argv[0], "-c", _CONNECTOR, launch.connector]
    try:
        done = _run(argv, start_environment(launch, os.environ), _IMPORT_DEADLINE_S)
    except (OSError, LaunchError, subprocess.TimeoutExpired) as error:
        return Check("connector", "FAIL", f"{launch.connector}: {error}", _install(launch))
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return Check("connector", "FAIL", f"{launch.connector} cannot be imported: {said}", _install(launch))
    return Check("connector", "ok", done.stdout.strip().splitlines()[-1])


def check_model(launch: EngineLaunch) -> Check:
    """The model's directory is there, with the digest of the record."""
    if launch.program == "simulated":
        return Check("model", "SKIP", "a simulated engine reads none")
    folder = Path(launch.model.path)
    if not (folder / "config.json").is_file():
        step = f"copy the checkpoint to {folder}, or correct model.path of the fleet file"
        return Check("model", "FAIL", f"{folder} has no config.json", step)
    if launch.model.digest is None:
        step = f"put the output of `narwhal engine digest {folder}` into model.digest of the fleet file"
        return Check("model", "WARN", f"{folder} is there, but nothing says what it should hold", step)
    try:
        found = tree_digest(folder)
    except OSError as error:
        return Check("model", "FAIL", f"{error.filename}: {error.strerror}", "make it readable for this user")
    if found != launch.model.digest:
        step = "copy the approved checkpoint again, or approve this one in model.digest of the fleet file"
        return Check("model", "FAIL", f"{folder} is {found}, not {launch.model.digest}", step)
    return Check("model", "ok", f"{folder} is {found}")


def check_ports(launch: EngineLaunch) -> Check:
    """The addresses are this host's, and nobody listens on the ports."""
    for host, port in ((launch.host, launch.port), (launch.side_channel_host, launch.side_channel_port)):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                step = f"see who has it: ss -ltnp 'sport = :{port}'; or choose another port in the fleet file"
                return Check("ports", "FAIL", f"cannot listen on port {port} of {host}: {error.strerror}", step)
    return Check("ports", "ok", f"{launch.port} and {launch.side_channel_port} are free")


def check_gpus(launch: EngineLaunch) -> Check:
    """The GPUs exist."""
    if not launch.gpus:
        return Check("gpus", "SKIP", "it uses none")
    query = ["nvidia-smi", "--query-gpu=index,name,memory.total,memory.used", "--format=csv,noheader,nounits"]
    try:
        done = _run(query, os.environ, 60.0)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check("gpus", "FAIL", f"nvidia-smi: {error}", "install the NVIDIA driver")
    if done.returncode:
        return Check("gpus", "FAIL", f"nvidia-smi: {done.stdout.strip() or done.stderr.strip()}", "repair the driver")
    return judge_gpus(launch.gpus, done.stdout)


def judge_gpus(wanted: Sequence[int], listed: str) -> Check:
    """Judge nvidia-smi's list: `index, name, memory.total, memory.used` a line, memory in MiB."""
    cells = [[cell.strip() for cell in line.split(",")] for line in listed.splitlines()]
    rows = {int(row[0]): row[1:] for row in cells if len(row) == 4}
    missing = [str(index) for index in wanted if index not in rows]
    if missing:
        step = "correct hosts.gpus or the engine's gpus in the fleet file"
        return Check("gpus", "FAIL", f"there is no GPU {', '.join(missing)}; there are {len(rows)}", step)
    text = ", ".join(f"{index}: {rows[index][0]}, {rows[index][1]} MiB" for index in wanted)
    used = [index for index in wanted if rows[index][2].isdigit() and int(rows[index][2]) > int(rows[index][1]) // 10]
    if used:
        said = "; ".join(f"GPU {index} has {rows[index][2]} MiB in use" for index in used)
        return Check("gpus", "WARN", f"{text}; {said}", "see whose it is: nvidia-smi")
    return Check("gpus", "ok", text)


def check_secrets(launch: EngineLaunch) -> Check:
    """Every secret can be read."""
    if not launch.secrets:
        return Check("secrets", "SKIP", "it has none")
    try:
        for name, secret in launch.secrets.items():
            read_secret(name, secret, os.environ)
    except LaunchError as error:
        return Check("secrets", "FAIL", str(error), "provide it to the user that starts the engine")
    return Check("secrets", "ok", ", ".join(launch.secrets))


CHECKS: Mapping[str, Callable[[EngineLaunch], Check]] = {
    "executable": check_executable,
    "packages": check_packages,
    "connector": check_connector,
    "model": check_model,
    "ports": check_ports,
    "gpus": check_gpus,
    "secrets": check_secrets,
}
SLOW = ("connector",)
"""Checks that `narwhal engine run` leaves out: the engine's own start does the same a moment later."""


def _same_version(found: str, wanted: str) -> bool:
    """A local part (`+cpu`) only counts where it is asked for."""
    return found == wanted or ("+" not in wanted and found.partition("+")[0] == wanted)


def _install(launch: EngineLaunch) -> str:
    if launch.container:
        return f"install {launch.container.tool}"
    if launch.program == "simulated":
        return "install narwhal again"
    pins = " ".join(f"'{name}=={version}'" if version else name for name, version in launch.packages.items())
    return f"{Path(launch.argv[0]).parent}/pip install {pins or 'vllm'} nixl"


def _run(argv: Sequence[str], environment: Mapping[str, str], deadline_s: float) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        list(argv), env=dict(environment), capture_output=True, text=True, timeout=deadline_s, check=False
    )
