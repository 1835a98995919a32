"""Rendering launch records: what the fleet file says of an engine, written out as the command that starts it."""

import re

from narwhal.engine.launch import simulated_argv
from narwhal.engine.record import EngineLaunch, LaunchContainer, LaunchModel
from narwhal.engine.vllm import API_KEY, CONNECTOR, vllm_argv, vllm_environment
from narwhal.fleet import EngineSpec, Expanded
from narwhal.fleet.model import ContainerRuntime, Secret, SimulatedRuntime, VenvRuntime

_PINNED = re.compile(r"^\s*([A-Za-z0-9._-]+)\s*(?:\[[^\]]*\])?\s*(?:==\s*([^\s,;*]+))?\s*$")


def render_launch(expanded: Expanded, engine: EngineSpec, *, deployed: bool = False) -> EngineLaunch:
    """The launch record of an engine. A simulated one runs by `narwhal_command`, or as gate B installs it.

    Raises `ValueError` for an engine that something else starts: one with a `url` of its own.
    """
    fleet, runtime = expanded.fleet, expanded.fleet.engines.runtime
    override = fleet.engines.overrides.get(engine.id)
    if override is not None and override.url is not None:
        raise ValueError(f"engine {engine.id} has a url, so something else starts it")
    common = {
        "kind": "EngineLaunch",
        "fleet": fleet.metadata.name,
        "engine": engine.id,
        "revision": fleet.metadata.revision,
        "gpus": list(engine.gpus),
        "tensor_parallel": fleet.engines.tensor_parallel,
        "host": engine.address,
        "port": engine.port,
        "side_channel_host": engine.address,
        "side_channel_port": engine.side_channel_port,
        "attest_port": engine.attest_port,
        "kv_lease_s": fleet.engines.kv_lease_s,
        "model": LaunchModel(name=fleet.model.name, path=fleet.model.path, digest=fleet.model.digest),
    }
    if isinstance(runtime, SimulatedRuntime):
        argv = simulated_argv(expanded, engine, deployed=deployed)
        return EngineLaunch.model_validate(common | {"program": "simulated", "device": "none", "argv": argv})
    return EngineLaunch.model_validate(common | _vllm(expanded, engine, runtime))


def _vllm(expanded: Expanded, engine: EngineSpec, runtime: VenvRuntime | ContainerRuntime) -> dict[str, object]:
    """What a launch record has for vLLM alone."""
    device = runtime.device if isinstance(runtime, VenvRuntime) else "cuda"
    given = expanded.fleet.engines.env
    plain = {name: value for name, value in given.items() if isinstance(value, str)}
    secrets: dict[str, Secret] = {name: value for name, value in given.items() if not isinstance(value, str)}
    if expanded.fleet.engines.api_key is not None and API_KEY not in given:
        secrets[API_KEY] = expanded.fleet.engines.api_key
    rendered: dict[str, object] = {
        "program": "vllm",
        "device": device,
        "environment": dict(sorted((vllm_environment(engine, device) | plain).items())),
        "secrets": dict(sorted(secrets.items())),
        "plugins": ["nixl-cpu"] if device == "cpu" else [],
        "connector": CONNECTOR,
    }
    if isinstance(runtime, ContainerRuntime):
        container = LaunchContainer(tool=runtime.tool, image=runtime.image)
        return rendered | {"container": container, "argv": ["python3", *vllm_argv(expanded, engine, device)]}
    argv = [f"{runtime.path.rstrip('/')}/bin/python", *vllm_argv(expanded, engine, device)]
    return rendered | {"argv": argv, "packages": pinned_packages(runtime.package)}


def pinned_packages(requirement: str) -> dict[str, str]:
    """The package that a requirement names, with its version when it is pinned; nothing for a path or URL."""
    found = _PINNED.match(requirement)
    return {found[1].lower().replace("_", "-"): found[2] or ""} if found else {}
