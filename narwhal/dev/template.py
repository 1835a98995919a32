"""The fleet file of a dev instance: an ordinary one, with ports that are free on this machine."""

import json
import string
from collections.abc import Mapping
from dataclasses import dataclass

from narwhal.dev.errors import DevError
from narwhal.dev.ports import free_run, is_free
from narwhal.dev.real import RealTemplate
from narwhal.documents import data_path
from narwhal.fleet.model import Scalar

SIMULATED = "simulated"
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


@dataclass(frozen=True, slots=True)
class RealPlan:
    """What a template of real engines is filled with, beside the plan."""

    template: RealTemplate
    model_name: str
    model_path: str
    package: str
    environment: str
    """Directory of the virtual environment that holds vLLM."""
    max_model_len: int
    args: Mapping[str, Scalar]
    utilization: float | None
    """Share of the card for each engine; None on the CPU."""


def fleet_yaml(plan: FleetPlan) -> str:
    """The text of a fleet file of simulated engines. Raises `DevError` when its port is taken."""
    return _filled(SIMULATED, plan, controller=str(plan.controller).lower())


def vllm_yaml(plan: FleetPlan, real: RealPlan) -> str:
    """The text of a fleet file of real engines. Raises `DevError` when its port is taken."""
    on_cpu = real.utilization is None
    sharing = "" if on_cpu else f"per_gpu: {plan.engines}\n  gpu_memory_utilization: {real.utilization}\n  "
    return _filled(
        "vllm",
        plan,
        what=real.template.what,
        model_name=json.dumps(real.model_name),
        model_path=json.dumps(real.model_path),
        gpus="" if on_cpu else "gpus: 1, ",
        package=json.dumps(real.package),
        environment=json.dumps(real.environment),
        device="cpu" if on_cpu else "cuda",
        sharing=sharing,
        max_model_len=real.max_model_len,
        max_num_seqs=real.template.max_num_seqs,
        max_num_batched_tokens=real.template.max_num_batched_tokens,
        args=json.dumps(dict(real.args)),  # JSON is YAML, and quotes what has to be
        prior="cpu-tiny" if on_cpu else "8b-h200",
    )


def _filled(template: str, plan: FleetPlan, **more: object) -> str:
    if plan.port is not None and not is_free(plan.port):
        raise port_taken(plan.port, "the router")
    first = free_run(3 * plan.engines + 2)
    text = string.Template(data_path("templates", "dev", f"{template}.yaml").read_text())
    return text.substitute(
        more,
        name=plan.name,
        ttft_s=plan.ttft_s,
        tpot_s=plan.tpot_s,
        engines=plan.engines,
        prefill=plan.prefill,
        decode=plan.engines - plan.prefill,
        engine_port=first,
        side_channel_port=first + plan.engines,
        attest_port=first + 2 * plan.engines,
        port=plan.port or first + 3 * plan.engines,
        admin_port=first + 3 * plan.engines + 1,
    )


def port_taken(port: int, who: str) -> DevError:
    """The error for a port that somebody else listens on."""
    return DevError(
        "port",
        f"port {port} of 127.0.0.1, meant for {who}, is in use by another process",
        hint=f"ss -ltnp 'sport = :{port}' shows by whom; narwhal dev init --force --port PORT takes other ports",
        failed=True,
    )
