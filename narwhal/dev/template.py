"""The fleet file of a dev instance: an ordinary one, with ports that are free on this machine."""

import shutil
import string
from dataclasses import dataclass

from narwhal.dev.errors import DevError
from narwhal.dev.ports import free_run, is_free
from narwhal.documents import data_path

SIMULATED = "simulated"
LATER = ("cpu", "small-cuda", "rtx-5090", "h200")
"""Templates of the design that this version does not have yet."""
PORT = 8000


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """What the template is filled with."""

    name: str
    engines: int
    prefill: int
    """Engines that start as prefill; the others start as decode."""
    ttft_s: float = 2.0
    tpot_s: float = 0.06
    controller: bool = True
    port: int | None = None
    """Port for clients; None: a free one."""


def choose_template(name: str | None) -> tuple[str, str]:
    """The template to use and a sentence that says why. Raises `DevError` for one that is not there."""
    if name in LATER:
        raise DevError(
            "template",
            f"the template {name!r} is not in this version of narwhal; it has: {SIMULATED}",
            hint=f"narwhal dev init --template {SIMULATED}",
        )
    if name not in (None, SIMULATED):
        raise DevError(
            "template",
            f"there is no template {name!r}; this version has: {SIMULATED}",
            hint=f"narwhal dev init --template {SIMULATED}",
        )
    if name is not None:
        return SIMULATED, f"template {SIMULATED}"
    if shutil.which("nvidia-smi"):
        return SIMULATED, f"template {SIMULATED}: templates for this machine's GPU are not in this version"
    return SIMULATED, f"no GPU found: template {SIMULATED}, engines that compute nothing and keep time"


def fleet_yaml(plan: FleetPlan) -> str:
    """The text of a fleet file for `plan`. Raises `DevError` when its port is taken."""
    if plan.port is not None and not is_free(plan.port):
        raise port_taken(plan.port, "the router")
    first = free_run(2 * plan.engines + 2)
    text = string.Template(data_path("templates", "dev", f"{SIMULATED}.yaml").read_text())
    return text.substitute(
        name=plan.name,
        ttft_s=plan.ttft_s,
        tpot_s=plan.tpot_s,
        engines=plan.engines,
        prefill=plan.prefill,
        decode=plan.engines - plan.prefill,
        engine_port=first,
        side_channel_port=first + plan.engines,
        port=plan.port or first + 2 * plan.engines,
        admin_port=first + 2 * plan.engines + 1,
        controller=str(plan.controller).lower(),
    )


def port_taken(port: int, who: str) -> DevError:
    """The error for a port that somebody else listens on."""
    return DevError(
        "port",
        f"port {port} of 127.0.0.1, meant for {who}, is in use by another process",
        hint=f"ss -ltnp 'sport = :{port}' shows by whom; narwhal dev init --force --port PORT takes other ports",
        failed=True,
    )
