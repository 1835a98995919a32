"""Real vLLM engines on this machine: which template fits, and how its memory is shared out beforehand.

Engines that start side by side on one card would measure each other's memory, so the KV cache of each is given in
bytes. What an engine takes beyond weights and KV was measured: 1.6 GB with CUDA graphs of decode batches and
8,192 tokens a step, under 1 GB eager with 1,024.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from narwhal.dev.errors import DevError
from narwhal.dev.machine import GIB, Gpu, ModelFacts, words
from narwhal.fleet.model import Scalar

CPU, SMALL_CUDA, RTX_5090, H200 = "cpu", "small-cuda", "rtx-5090", "h200"
_CPU_ENGINE_BYTES = int(1.5 * GIB)
"""Memory of one CPU engine of the tiny model, with room: 1.1 GB were measured."""


@dataclass(frozen=True, slots=True)
class RealTemplate:
    """One kind of machine."""

    name: str
    what: str
    engines: int
    """Engines by default, all on the first GPU."""
    most_engines: int
    budget_bytes: int | None
    """Most that all engines take together; None: what is free, less a twentieth."""
    overhead_bytes: int
    """What an engine takes beyond weights and KV."""
    least_kv_bytes: int
    most_kv_bytes: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    ttft_s: float
    tpot_s: float
    args: Mapping[str, Scalar]


_GRAPHS = '{"mode":0,"cudagraph_mode":"FULL_DECODE_ONLY"}'
"""CUDA graphs for decode batches alone: they start in seconds, and prefill gains little from them."""
TEMPLATES: Mapping[str, RealTemplate] = MappingProxyType(
    {
        CPU: RealTemplate(
            CPU, "two vLLM engines on this machine's CPU", 2, 4, None, 0, 128 << 20, 128 << 20, 4096, 16, 2048,
            10.0, 0.5, {},
        ),
        SMALL_CUDA: RealTemplate(
            SMALL_CUDA, "two engines on one NVIDIA GPU, in 8 GB at most", 2, 2, 8 * 10**9, GIB, 256 << 20, 4 * GIB,
            4096, 16, 1024, 3.0, 0.1, {"enforce-eager": True},
        ),
        RTX_5090: RealTemplate(
            RTX_5090, "four engines on one 32 GB card", 4, 4, None, int(1.6 * GIB), 512 << 20, 6 * GIB,
            8192, 64, 4096, 2.0, 0.05, {"compilation-config": _GRAPHS},
        ),
        H200: RealTemplate(
            H200, "two to eight engines on one H200", 4, 8, None, int(2.5 * GIB), GIB, 16 * GIB,
            16384, 128, 8192, 1.0, 0.02, {"compilation-config": _GRAPHS, "block-size": 64},
        ),
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Share:
    """What each engine is given."""

    kv_bytes: int
    utilization: float
    """vLLM's share of the card: an upper bound that its own check of free memory needs to pass."""
    gpu: Gpu | None


def template_for(gpus: Sequence[Gpu]) -> tuple[str, str]:
    """The template of a machine, and why: by its first GPU."""
    if not gpus:
        return "simulated", "no GPU found: template simulated, engines that compute nothing and keep time"
    name = gpus[0].name
    if "H200" in name or "H100" in name:
        return H200, f"found {words(gpus)}: template {H200}"
    if "5090" in name:
        return RTX_5090, f"found {words(gpus)}: template {RTX_5090}"
    return SMALL_CUDA, f"found {words(gpus)}: template {SMALL_CUDA}"


def share_out(template: RealTemplate, engines: int, model: ModelFacts, gpus: Sequence[Gpu]) -> Share:
    """Memory of each engine on the first GPU. Raises `DevError` with the exact shortage."""
    if engines > template.most_engines:
        most = f"template {template.name} has at most {template.most_engines} engines, not {engines}"
        raise DevError("engines", most, hint=f"narwhal dev init --engines {template.most_engines}")
    if not gpus:
        raise DevError(
            "gpu",
            f"template {template.name} needs an NVIDIA GPU, and nvidia-smi finds none on this machine",
            hint="narwhal dev init --template cpu, or --template simulated",
        )
    gpu = gpus[0]
    budget = int(gpu.free_bytes * 0.95)
    if template.budget_bytes is not None:
        budget = min(budget, int(template.budget_bytes * 0.97))
    fixed = model.weights_bytes + template.overhead_bytes
    kv_bytes = min(budget // engines - fixed, template.most_kv_bytes) & ~0xFFFFF
    if kv_bytes < template.least_kv_bytes:
        need = engines * (fixed + template.least_kv_bytes)
        raise DevError(
            "memory",
            f"{engines} engines need {need / GIB:.1f} GiB of GPU {gpu.index} ({gpu.name}): each "
            f"{model.weights_bytes / GIB:.1f} for weights, {template.overhead_bytes / GIB:.1f} beside them and at "
            f"least {template.least_kv_bytes / GIB:.2f} for KV; {budget / GIB:.1f} GiB may be used, "
            f"{(need - budget) / GIB:.1f} GiB are missing",
            hint="fewer --engines (2 at least), a smaller --model, or free memory on the card",
        )
    return Share(kv_bytes, round(min((fixed + kv_bytes) / gpu.total_bytes + 0.01, 0.95), 3), gpu)


def check_cpu(engines: int, available_bytes: int) -> None:
    """Raises `DevError` when the machine's memory is too small for CPU engines."""
    need = engines * _CPU_ENGINE_BYTES
    if need > available_bytes:
        raise DevError(
            "memory",
            f"{engines} vLLM engines on the CPU need {need / GIB:.1f} GiB of memory, {available_bytes / GIB:.1f} are "
            "available",
            hint="free memory, or narwhal dev init --template simulated",
        )
