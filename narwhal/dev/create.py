"""Making an instance."""

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path

from narwhal.dev.errors import DevError
from narwhal.dev.instance import Instance
from narwhal.dev.lifecycle import Say
from narwhal.dev.machine import ModelFacts, find_gpus, host_memory_bytes, read_model
from narwhal.dev.ports import is_free
from narwhal.dev.process import living
from narwhal.dev.real import CPU, TEMPLATES, RealTemplate, check_cpu, share_out, template_for
from narwhal.dev.template import PORT, SIMULATED, FleetPlan, RealPlan, fleet_yaml, vllm_yaml
from narwhal.engine.cpu import PACKAGE, NotInstallableError, PrepareError, prepare

MODEL_NAME = "dev"
"""What clients of a dev fleet call its model."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What `init` was asked for; None: choose."""

    template: str | None = None
    engines: int | None = None
    port: int | None = None
    model: Path | None = None
    environment: Path | None = None
    """Virtual environment that holds vLLM."""
    force: bool = False


@dataclass(frozen=True, slots=True)
class Created:
    """What `init` chose."""

    template: str
    why: str
    """Why this template, in a sentence."""
    engines: int
    port: int


def create(instance: Instance, wish: Wish, say: Say) -> Created:
    """Make a new instance in its directory, with ports that are free now.

    Without a port clients get 8000, or a free one when that is taken. An instance that is there is replaced only
    with `force`, and only when nothing of it runs. Raises `DevError`.
    """
    name, why = _choose(wish.template)
    if running := living(instance.run):
        raise DevError(
            "running", f"the instance in {instance.path} is running: {', '.join(running)}", hint="narwhal dev down"
        )
    if instance.exists and not wish.force:
        raise DevError(
            "exists",
            f"there is a dev instance in {instance.path} already",
            hint="narwhal dev up starts it; narwhal dev init --force replaces its fleet file",
        )
    port = wish.port or (PORT if is_free(PORT) else None)
    if name == SIMULATED:
        engines = wish.engines or 4
        text = fleet_yaml(FleetPlan("dev", engines, engines // 2, port=port))
    else:
        template = TEMPLATES[name]
        engines = wish.engines or template.engines
        plan = FleetPlan("dev", engines, engines // 2, template.ttft_s, template.tpot_s, port=port)
        text = vllm_yaml(plan, _real(template, engines, wish, say))
    instance.create(name, engines, text)
    return Created(name, why, engines, instance.expanded().routers[0].port)


def _choose(name: str | None) -> tuple[str, str]:
    if name is None:
        return template_for(find_gpus())
    if name != SIMULATED and name not in TEMPLATES:
        known = ", ".join((SIMULATED, *TEMPLATES))
        raise DevError("template", f"there is no template {name!r}; there are {known}", hint="narwhal dev init")
    return name, f"template {name}"


def _real(template: RealTemplate, engines: int, wish: Wish, say: Say) -> RealPlan:
    """Find or make what real engines need. Raises `DevError` naming what is missing."""
    if template.name == CPU:
        return _on_cpu(template, engines, wish, say)
    gpus = find_gpus()
    model = _given_model(wish)
    share = share_out(template, engines, model, gpus)
    args = {**template.args, "kv-cache-memory-bytes": share.kv_bytes}
    length = min(template.max_model_len, model.longest)
    environment = _environment(wish)
    return RealPlan(template, MODEL_NAME, str(model.path), "vllm", str(environment), length, args, share.utilization)


def _on_cpu(template: RealTemplate, engines: int, wish: Wish, say: Say) -> RealPlan:
    check_cpu(engines, host_memory_bytes())
    try:
        made = None if wish.environment and wish.model else prepare(say)
    except NotInstallableError as error:
        hint = "install vLLM for the CPU yourself and say --environment VENV, or --template simulated"
        raise DevError("not_installable", str(error), hint=hint, failed=True) from None
    except PrepareError as error:
        raise DevError("prepare", str(error), hint="repair that, then narwhal dev init again", failed=True) from None
    environment = wish.environment or (made.environment if made else Path())
    model = read_model(wish.model or (made.model if made else Path()))
    args = {**template.args, "kv-cache-memory-bytes": template.most_kv_bytes}
    length = min(template.max_model_len, model.longest)
    return RealPlan(template, MODEL_NAME, str(model.path), PACKAGE, str(environment.absolute()), length, args, None)


def _given_model(wish: Wish) -> ModelFacts:
    if wish.model is None:
        raise DevError(
            "model",
            "a template for a GPU needs a model, and this machine's models are not known to narwhal",
            hint="narwhal dev init --model FOLDER: a directory with config.json, tokenizer and *.safetensors",
        )
    return read_model(wish.model)


def _environment(wish: Wish) -> Path:
    """The environment of the engines: the one named, else the one that narwhal itself runs in, if vLLM is there."""
    if wish.environment is not None:
        python = wish.environment / "bin" / "python"
        if not python.exists():
            raise DevError(
                "environment", f"{python} is not there", hint="--environment FOLDER of a virtual environment"
            )
        return wish.environment.absolute()
    if importlib.util.find_spec("vllm") is None or importlib.util.find_spec("nixl") is None:
        raise DevError(
            "environment",
            f"vLLM and NIXL are not installed beside narwhal in {sys.prefix}",
            hint="pip install 'narwhal-inference[vllm]', or --environment FOLDER of a virtual environment with both",
        )
    return Path(sys.prefix)
