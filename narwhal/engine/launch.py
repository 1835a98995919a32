"""How an engine process is started."""

import sys
from pathlib import Path

from narwhal.fleet import EngineSpec, Expanded
from narwhal.fleet.model import SimulatedRuntime
from narwhal.fleet.places import DEPLOYED, NARWHAL_HOME


def narwhal_command(expanded: Expanded, host: str) -> list[str]:
    """How `narwhal` is called on a host: by what gate B installed there, or with this Python.

    A host is deployed when it is reached over SSH, or when this process runs from what was installed there: whoever
    renders a launch, on the operator's machine or on the host, renders the same.
    """
    remote = any(one.name == host and one.ssh is not None for one in expanded.fleet.hosts)
    installed = Path(sys.prefix).is_relative_to(NARWHAL_HOME)
    return [DEPLOYED] if remote or installed else [sys.executable, "-m", "narwhal"]


def simulated_argv(expanded: Expanded, engine: EngineSpec, *, deployed: bool = False) -> list[str]:
    """The command that starts `engine` as a simulated engine, here or, with `deployed`, as gate B installs it.

    Raises `ValueError` when its runtime is another.
    """
    engines = expanded.fleet.engines
    runtime = engines.runtime
    if not isinstance(runtime, SimulatedRuntime):
        raise ValueError(f"engine {engine.id} has the runtime {runtime.kind}, not simulated")
    options: dict[str, object] = {
        "host": engine.address,
        "port": engine.port,
        "side-channel-port": engine.side_channel_port,
        "model": expanded.fleet.model.name,
        "profile": runtime.profile,
        "speed": runtime.speed,
        "max-model-len": engines.max_model_len,
        "max-num-seqs": engines.max_num_seqs,
        "max-num-batched-tokens": engines.max_num_batched_tokens,
        "kv-lease-s": engines.kv_lease_s,
    }
    options |= dict(engine.args)
    argv = [*([DEPLOYED] if deployed else narwhal_command(expanded, engine.host)), "engine", "simulate"]
    for name, value in options.items():
        argv += [f"--{name}"] if value is True else [] if value is False else [f"--{name}", str(value)]
    return argv
