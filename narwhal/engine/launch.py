"""How an engine process is started."""

import sys
from pathlib import Path

from narwhal.fleet import EngineSpec, Expanded
from narwhal.fleet.model import SimulatedRuntime
from narwhal.fleet.places import DEPLOYED_PYTHON, NARWHAL_HOME


def engine_python(expanded: Expanded, host: str) -> str:
    """The Python that runs a simulated engine: a deployed host's own, which gate B installs; else this one.

    A host is deployed when it is reached over SSH, or when this process runs from what was installed there: whoever
    renders a launch, on the operator's machine or on the host, renders the same.
    """
    remote = any(one.name == host and one.ssh is not None for one in expanded.fleet.hosts)
    installed = Path(sys.prefix).is_relative_to(NARWHAL_HOME)
    return DEPLOYED_PYTHON if remote or installed else sys.executable


def simulated_argv(expanded: Expanded, engine: EngineSpec, python: str | None = None) -> list[str]:
    """The command that starts `engine` as a simulated engine, with `python` or the one of `engine_python`.

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
    argv = [python or engine_python(expanded, engine.host), "-m", "narwhal", "engine", "simulate"]
    for name, value in options.items():
        argv += [f"--{name}"] if value is True else [] if value is False else [f"--{name}", str(value)]
    return argv
