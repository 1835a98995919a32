"""The sweep of a whole fleet: engines that share nothing at the same time, those that share a card one by one."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from narwhal.fleet import EngineSpec, Expanded, load_profile
from narwhal.fleet.model import SimulatedRuntime
from narwhal.profiling.build import Built, Neighbours, build_profile
from narwhal.profiling.client import EngineError, EngineUrl
from narwhal.profiling.facts import EngineFacts, read_facts
from narwhal.profiling.plan import plan_sweep
from narwhal.profiling.reach import engine_urls
from narwhal.profiling.samples import Sample, SampleFile
from narwhal.profiling.store import samples_path, stored_profile
from narwhal.profiling.sweep import Say, Sweep, directed_pairs

_LOAD_STREAMS, _LOAD_TOKENS = 4, 512
"""What keeps a neighbour on the same card busy: about the load at which SLOs of a few times d0 begin to bind."""


IDLE_LOOKS, IDLE_LOOK_S = 10, 0.5
"""How often, and how far apart in seconds, engines are looked at before they are called busy."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What is to be measured, and how."""

    expanded: Expanded
    folder: Path
    """Where samples are kept."""
    engines: tuple[str, ...] = ()
    """Only these; empty: all."""
    short: bool = False
    fresh: bool = False
    """Forget the samples that are there."""
    neighbours_idle: bool = False
    handoffs: bool = True


async def profile_fleet(ask: Ask, say: Say) -> list[Built]:
    """Sweep, fit, and return one profile for each contract. Raises `EngineError` and `FitError`."""
    expanded = ask.expanded
    chosen = [spec for spec in expanded.engines if not ask.engines or spec.id in ask.engines]
    urls = engine_urls(expanded)
    for patience in (*range(IDLE_LOOKS - 1, 0, -1), 0):
        facts = await asyncio.gather(*(read_facts(expanded, spec, urls[spec.id]) for spec in chosen))
        busy = [f"{f.engine} has {f.running}" for f in facts if f.running]
        if not busy:
            break
        if not patience:
            raise EngineError(f"engines are serving requests ({', '.join(busy)}); a sweep needs them idle")
        await asyncio.sleep(IDLE_LOOK_S)  # a router's canary is over in a moment
    sweeps = {f.engine: _sweep(ask, f, urls[f.engine], say) for f in facts}
    samples: dict[str, list[Sample]] = {f.engine: [] for f in facts}
    async with asyncio.TaskGroup() as group:
        for members in sharing(expanded, chosen):
            group.create_task(_measure(ask, members, sweeps, urls, samples))
    if ask.handoffs:
        await _handoffs(facts, sweeps, samples)
    return [_build(ask, group, samples) for group in _contracts(facts)]


async def has_profiles(expanded: Expanded, folder: Path) -> bool:
    """Whether every engine has a measured profile of the contract that it runs with. Raises `EngineError`."""
    urls = engine_urls(expanded)
    known = [read_facts(expanded, spec, urls[spec.id]) for spec in expanded.engines]
    facts = await asyncio.gather(*known)
    return all(stored_profile(folder, f.contract) is not None for f in facts)


def sharing(expanded: Expanded, chosen: Sequence[EngineSpec]) -> list[list[EngineSpec]]:
    """Engines grouped by what they share: a card, or the processors of a host without one; simulated ones: nothing."""
    simulated = isinstance(expanded.fleet.engines.runtime, SimulatedRuntime)
    groups: dict[str, list[EngineSpec]] = {}
    for spec in chosen:
        shared = spec.shared_device or (spec.id if spec.gpus or simulated else spec.host)
        groups.setdefault(shared, []).append(spec)
    return list(groups.values())


def _sweep(ask: Ask, facts: EngineFacts, engine: EngineUrl, say: Say) -> Sweep:
    engines = ask.expanded.fleet.engines
    plan = plan_sweep(facts, max_model_len=engines.max_model_len, max_num_seqs=engines.max_num_seqs, short=ask.short)
    path = samples_path(ask.folder, facts.engine)
    if ask.fresh:
        path.unlink(missing_ok=True)
    return Sweep(engine, ask.expanded.fleet.model.name, plan, SampleFile(path, facts.contract), say)


async def _measure(
    ask: Ask,
    members: Sequence[EngineSpec],
    sweeps: dict[str, Sweep],
    urls: dict[str, EngineUrl],
    samples: dict[str, list[Sample]],
) -> None:
    for spec in members:
        sweep = sweeps[spec.id]
        others = [urls[other.id] for other in ask.expanded.engines if shares(spec, other) and not ask.neighbours_idle]
        async with sweep.loaded(others, _LOAD_STREAMS, _LOAD_TOKENS):
            samples[spec.id] += await sweep.run()


def shares(spec: EngineSpec, other: EngineSpec) -> bool:
    """Whether two engines are on one card."""
    return spec.id != other.id and spec.shared_device is not None and spec.shared_device == other.shared_device


async def _handoffs(facts: Sequence[EngineFacts], sweeps: dict[str, Sweep], samples: dict[str, list[Sample]]) -> None:
    """Every directed pair inside a contract, one after another: nothing else runs while a handoff is timed."""
    for group in _contracts(facts):
        for producer, consumer in directed_pairs([sweeps[f.engine].engine for f in group]):
            samples[consumer.id] += await sweeps[consumer.id].handoffs(producer)


def _contracts(facts: Sequence[EngineFacts]) -> list[list[EngineFacts]]:
    groups: dict[str, list[EngineFacts]] = {}
    for f in facts:
        groups.setdefault(f.contract, []).append(f)
    return list(groups.values())


def _build(ask: Ask, facts: Sequence[EngineFacts], samples: dict[str, list[Sample]]) -> Built:
    fleet = ask.expanded.fleet
    shared = any(ask.expanded.engine(f.engine).shared_device for f in facts)
    neighbours: Neighbours = "none" if not shared else "idle" if ask.neighbours_idle else "loaded"
    return build_profile(
        f"{fleet.metadata.name}-{facts[0].contract[:8]}",
        facts,
        [sample for f in facts for sample in samples[f.engine]],
        load_profile(fleet.profiles.prior),
        max_num_seqs=fleet.engines.max_num_seqs,
        max_num_batched_tokens=fleet.engines.max_num_batched_tokens,
        neighbours=neighbours,
    )
