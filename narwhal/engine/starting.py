"""From a launch record to a process: the names that tell its generation, its environment, its command."""

import os
from collections.abc import Mapping
from pathlib import Path

from narwhal.documents import data_path
from narwhal.engine.dialect import GENERATION_NAME, LAUNCH_NAME
from narwhal.engine.record import EngineLaunch, LaunchError
from narwhal.fleet.model import Secret, SecretFromEnv

_PLUGINS = {"nixl-cpu": ("templates", "vllm-cpu", "plugin")}
_NOT_INHERITED = ("PYTHONHOME", "PYTHONPATH", "PYENV_VERSION", "VIRTUAL_ENV")
"""Variables that belong to the Python of `narwhal`, not to the engine's."""


def served_names(launch: EngineLaunch, generation: str) -> list[str]:
    """Names that the engine serves: the clients' first, then those that tell generation and launch record."""
    digest = launch.digest().removeprefix("sha256:")
    return [launch.model.name, f"{GENERATION_NAME}{generation}", f"{LAUNCH_NAME}{digest}"]


def start_argv(launch: EngineLaunch, generation: str) -> list[str]:
    """The command of one start. `generation` is fresh for each: a UUID."""
    names = served_names(launch, generation)
    argv = [*launch.argv]
    if launch.program == "simulated":
        for name in names[1:]:
            argv += ["--alias", name]
    else:
        argv += ["--served-model-name", *names]
    return _in_container(launch, argv) if launch.container else argv


def start_environment(launch: EngineLaunch, base: Mapping[str, str]) -> dict[str, str]:
    """The environment of a start: `base` without what belongs to narwhal's own Python, the record's, and its secrets.

    Raises `LaunchError` for a secret that is not there.
    """
    found = {name: value for name, value in base.items() if name not in _NOT_INHERITED}
    found |= launch.environment
    found |= {name: read_secret(name, secret, base) for name, secret in launch.secrets.items()}
    if launch.plugins:
        folders = [str(data_path(*_PLUGINS[plugin])) for plugin in launch.plugins]
        found["PYTHONPATH"] = os.pathsep.join(folders + [p for p in (launch.environment.get("PYTHONPATH"),) if p])
    return found


def read_secret(name: str, secret: Secret, base: Mapping[str, str]) -> str:
    """The value of a secret. Raises `LaunchError` naming the place, never the value."""
    if isinstance(secret, SecretFromEnv):
        if secret.env not in base:
            raise LaunchError(f"the secret {name} is to come from the variable {secret.env}, which is not set")
        return base[secret.env]
    try:
        return Path(secret.file).read_text().removesuffix("\n")
    except OSError as error:
        raise LaunchError(f"the secret {name} is to come from {secret.file}: {error.strerror}") from None


def _in_container(launch: EngineLaunch, argv: list[str]) -> list[str]:
    """The container tool's command. All GPUs go in and CUDA_VISIBLE_DEVICES chooses: peers need each other's."""
    container = launch.container
    assert container is not None
    gpus = ["--device", "nvidia.com/gpu=all"] if container.tool == "podman" else ["--gpus", "all"]
    variables = [f"{name}={value}" for name, value in launch.environment.items()] + list(launch.secrets)
    command = [container.tool, "run", "--rm", "--name", f"narwhal-{launch.engine.replace('/', '-')}"]
    command += ["--network", "host", "--ipc", "host", "--ulimit", "memlock=-1"]
    command += gpus if launch.gpus else []
    command += ["--volume", f"{launch.model.path}:{launch.model.path}:ro"]
    for variable in variables:
        command += ["--env", variable]
    return [*command, "--entrypoint", argv[0], container.image, *argv[1:]]
