"""What this machine has: GPUs by nvidia-smi, memory, and the weights of a model directory."""

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from narwhal.dev.errors import DevError

_QUERY = ("index", "name", "memory.total", "memory.free", "driver_version", "compute_cap")
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU."""

    index: int
    name: str
    total_bytes: int
    free_bytes: int
    driver: str
    compute: str
    """Compute capability: `9.0`."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model directory."""

    path: Path
    weights_bytes: int
    """Size of its weight files: about what they take on the device in the type that they are stored in."""
    longest: int
    """`max_position_embeddings` of its configuration."""


def find_gpus() -> list[Gpu]:
    """The CUDA GPUs that nvidia-smi lists; none without it. Raises `DevError` when it is there and fails."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    argv = [program, f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stdout", None) or getattr(error, "stderr", None) or str(error)).strip()
        raise DevError("gpu", f"nvidia-smi failed: {said}", hint="repair the driver, or --template simulated") from None
    return read_gpus(done.stdout)


def read_gpus(text: str) -> list[Gpu]:
    """The GPUs of nvidia-smi's answer; memory there is in MiB. Raises `DevError` for a line of another form."""
    gpus = []
    for line in text.splitlines():
        if not line.strip():
            continue
        try:
            index, name, total, free, driver, compute = (part.strip() for part in line.split(","))
            gpus.append(Gpu(int(index), name, int(total) << 20, int(free) << 20, driver, compute))
        except ValueError:
            raise DevError("gpu", f"nvidia-smi says {line!r}, which is not {', '.join(_QUERY)}") from None
    return gpus


def read_model(path: Path) -> ModelFacts:
    """What there is to know of a model directory. Raises `DevError` naming what it lacks."""
    hint = "--model FOLDER: a directory with config.json, tokenizer and *.safetensors"
    try:
        config = json.loads((path / "config.json").read_bytes())
    except OSError as error:
        raise DevError("model", f"{path}/config.json: {error.strerror}", hint=hint) from None
    except ValueError as error:
        raise DevError("model", f"{path}/config.json is not JSON: {error}", hint=hint) from None
    weights = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    if not weights:
        raise DevError("model", f"{path} holds no *.safetensors", hint=hint)
    longest = config.get("max_position_embeddings") if isinstance(config, dict) else None
    return ModelFacts(path.absolute(), weights, longest if isinstance(longest, int) and longest > 0 else 4096)


def host_memory_bytes() -> int:
    """Memory of this machine that is available now."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def words(gpus: Sequence[Gpu]) -> str:
    """The GPUs in a few words: `2 x NVIDIA H200 (139.8 GiB free), driver 580`."""
    first = gpus[0]
    return f"{len(gpus)} x {first.name} ({first.free_bytes / GIB:.1f} GiB free), driver {first.driver}"
