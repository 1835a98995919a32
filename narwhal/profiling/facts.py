"""What an engine says of itself, and the contract that its curves hold for."""

import hashlib
import re
from collections.abc import Iterable
from typing import Any

import msgspec

from narwhal.fleet import EngineSpec, Expanded
from narwhal.fleet.model import Fleet
from narwhal.profiling.client import EngineError, EngineUrl, ask

_CONFIG = re.compile(rb"^vllm:cache_config_info\{(.*)\} ", re.MULTILINE)
_LABEL = re.compile(rb'(\w+)="([^"]*)"')
_SAMPLE = re.compile(rb"^([a-zA-Z_:]+)(?:\{([^}]*)\})? (\S+)$", re.MULTILINE)
_GEOMETRY = ("block_size", "cache_dtype", "enable_prefix_caching", "num_gpu_blocks")


class EngineFacts(msgspec.Struct, frozen=True):
    """One engine as it runs."""

    engine: str
    version: str
    block_tokens: int
    kv_capacity_tokens: int
    prefix_caching: bool
    running: int
    """Requests that it has already, running and waiting."""
    contract: str
    """Digest of `terms`: 16 hex digits."""
    terms: dict[str, Any] = {}
    """All that its speed depends on and its launch fixes."""


class _Version(msgspec.Struct):
    version: str


async def read_facts(expanded: Expanded, spec: EngineSpec, engine: EngineUrl) -> EngineFacts:
    """Ask an engine. Raises `EngineError` when it does not tell its version or its cache's size."""
    page = (await ask(engine, "/metrics", timeout_s=30.0)).body
    version = (await ask(engine, "/version", timeout_s=30.0)).body
    return engine_facts(expanded.fleet, spec, sharers(expanded.engines, spec), page, version)


def sharers(engines: Iterable[EngineSpec], spec: EngineSpec) -> int:
    """How many engines have the card of `spec`, itself included."""
    if spec.shared_device is None:
        return 1
    return sum(other.shared_device == spec.shared_device for other in engines)


def engine_facts(fleet: Fleet, spec: EngineSpec, shared_by: int, page: bytes, version_answer: bytes) -> EngineFacts:
    """The facts of an engine from its /metrics page and its answer to /version. Raises `EngineError`.

    `shared_by`: how many engines have its card.
    """
    found = _CONFIG.search(page)
    if found is None:
        raise EngineError(f"{spec.id}: /metrics has no vllm:cache_config_info, so its KV capacity is unknown")
    labels = {name.decode(): value.decode() for name, value in _LABEL.findall(found.group(1))}
    try:
        version = msgspec.json.decode(version_answer, type=_Version).version
        block = int(labels["block_size"])
        capacity = int(labels.get("kv_cache_size_tokens") or block * int(labels["num_gpu_blocks"]))
    except (msgspec.DecodeError, KeyError, ValueError) as error:
        raise EngineError(f"{spec.id}: cannot read its version and cache geometry: {error!r}") from error
    counts = totals(page)
    running = counts.get("vllm:num_requests_running", 0.0) + counts.get("vllm:num_requests_waiting", 0.0)
    geometry = {name: labels.get(name, "") for name in _GEOMETRY}
    terms = contract_terms(fleet, spec, shared_by, version, geometry)
    return EngineFacts(
        engine=spec.id,
        version=version,
        block_tokens=block,
        kv_capacity_tokens=capacity,
        prefix_caching=labels.get("enable_prefix_caching", "").lower() == "true",
        running=int(running),
        contract=contract_of(terms),
        terms=terms,
    )


def contract_of(terms: dict[str, Any]) -> str:
    """The contract fingerprint: what a restart with the same launch keeps, and a changed launch does not."""
    return hashlib.sha256(msgspec.json.encode(terms, order="deterministic")).hexdigest()[:16]


def contract_terms(
    fleet: Fleet, spec: EngineSpec, shared_by: int, version: str, geometry: dict[str, str]
) -> dict[str, Any]:
    """What the contract fingerprint is of.

    Ports, host and role are left out: they do not change an engine's speed. The cards it shares are in.
    """
    engines = fleet.engines
    return {
        "version": version,
        "geometry": geometry,
        "model": fleet.model.model_dump(mode="json"),
        "runtime": engines.runtime.model_dump(mode="json"),
        "tensor_parallel": engines.tensor_parallel,
        "gpus": len(spec.gpus),
        "shared_by": shared_by,
        "max_model_len": engines.max_model_len,
        "max_num_seqs": engines.max_num_seqs,
        "max_num_batched_tokens": engines.max_num_batched_tokens,
        "args": dict(spec.args),
        "env": engines.env,
    }


def totals(page: bytes) -> dict[str, float]:
    """The samples of a metrics page by name, those of one name summed, lines that are no samples left out."""
    sums: dict[str, float] = {}
    for name, _labels, value in _SAMPLE.findall(page):
        try:
            sums[name.decode()] = sums.get(name.decode(), 0.0) + float(value)
        except ValueError:
            continue
    return sums
