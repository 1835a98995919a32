"""How an engine process is started."""

import sys

from narwhal.fleet import EngineSpec, Expanded
from narwhal.fleet.model import SimulatedRuntime


def simulated_argv(expanded: Expanded, engine: EngineSpec) -> list[str]:
    """The command that starts `engine` as a simulated engine. Raises `ValueError` when its runtime is another."""
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
    argv = [sys.executable, "-m", "narwhal", "engine", "simulate"]
    for name, value in options.items():
        argv += [f"--{name}"] if value is True else [] if value is False else [f"--{name}", str(value)]
    return argv
