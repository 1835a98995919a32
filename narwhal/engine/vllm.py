"""vLLM with NixlConnector: the arguments and the environment that it is started with. Its spelling stands here alone.

Where a setting is not self-evident, `docs/engines.md` says what was seen without it.
"""

import ipaddress
import json

from narwhal.fleet import EngineSpec, Expanded
from narwhal.fleet.model import Scalar

CONNECTOR = "NixlConnector"
ROLE = "kv_both"
"""Every engine produces and consumes; the role is the router's business."""

API_KEY = "VLLM_API_KEY"
"""Variable with the token that a client must show."""

_EVERYWHERE = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
_CUDA = {
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # the order of nvidia-smi, in which the fleet file counts
    "UCX_CUDA_IPC_ENABLE_GET_ZCOPY": "on",  # else reads between processes of one host fall back to TCP, unsaid
    "UCX_RCACHE_MAX_UNRELEASED": "1024",
    "UCX_WARN_UNUSED_ENV_VARS": "n",
}
_CPU = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # one process less
    "VLLM_TARGET_DEVICE": "cpu",
}
_CPU_ARGS: dict[str, Scalar] = {
    "distributed-executor-backend": "uni",
    "dtype": "float32",
    "enforce-eager": True,
    "kv-cache-memory-bytes": 128 << 20,
}


def vllm_argv(expanded: Expanded, engine: EngineSpec, device: str) -> list[str]:
    """Arguments of the Python that runs vLLM's server, without the names that it serves."""
    engines = expanded.fleet.engines
    options: dict[str, Scalar] = {
        "model": expanded.fleet.model.path,
        "host": engine.address,
        "port": engine.port,
        "max-model-len": engines.max_model_len,
        "max-num-seqs": engines.max_num_seqs,
        "max-num-batched-tokens": engines.max_num_batched_tokens,
        "tensor-parallel-size": engines.tensor_parallel,
        "disable-uvicorn-access-log": True,
    }
    if engines.gpu_memory_utilization is not None:
        options["gpu-memory-utilization"] = engines.gpu_memory_utilization
    if device == "cpu":
        options |= _CPU_ARGS
    options |= dict(engine.args)
    options["kv-transfer-config"] = json.dumps(transfer_config(engines.kv_lease_s, device), separators=(",", ":"))
    argv = ["-m", "vllm.entrypoints.openai.api_server"]
    for name, value in options.items():
        argv += [f"--{name}" if value else f"--no-{name}"] if isinstance(value, bool) else [f"--{name}", str(value)]
    return argv


def transfer_config(lease_s: float, device: str) -> dict[str, object]:
    """VLLM's KV transfer configuration. Never an `engine_id`: vLLM makes a fresh one at each start."""
    extra: dict[str, object] = {"kv_lease_duration": int(lease_s) if float(lease_s).is_integer() else lease_s}
    if device == "cpu":
        extra["num_threads"] = 1
    return {
        "kv_connector": CONNECTOR,
        "kv_role": ROLE,
        "kv_buffer_device": device,
        "kv_load_failure_policy": "fail",
        "kv_connector_extra_config": extra,
    }


def vllm_environment(engine: EngineSpec, device: str) -> dict[str, str]:
    """Variables of vLLM, NIXL and UCX for an engine."""
    own = {
        "VLLM_HOST_IP": engine.address,
        "VLLM_NIXL_SIDE_CHANNEL_HOST": engine.address,
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(engine.side_channel_port),
    }
    if _is_loopback(engine.address):
        # else UCX and gloo listen on the machine's other addresses too
        own |= {"GLOO_SOCKET_IFNAME": "lo", "VLLM_LOOPBACK_IP": engine.address, "UCX_NET_DEVICES": "lo"}
    if device == "cpu":
        if dict(engine.args).get("enforce-eager", True):
            # else a sampler's function is compiled at the first request for log-probabilities, and the engine ends
            # where no C++ compiler is installed
            own["TORCH_COMPILE_DISABLE"] = "1"
        return _EVERYWHERE | _CPU | own
    if engine.gpus:
        own["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, engine.gpus))
    return _EVERYWHERE | _CUDA | own


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
