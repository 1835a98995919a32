"""From what an operator has (a fleet file, curves, a trace or a mix) to a scenario."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import msgspec

from narwhal.control import Curves, Settings
from narwhal.fleet import Expanded, Profile, load_profile
from narwhal.fleet.model import Controller, PromptTarget, Recovery, Serving, SimulatedRuntime, Slo
from narwhal.profiling import engine_profile
from narwhal.simulate.bodies import classes
from narwhal.simulate.engine_setup import EngineSetup
from narwhal.simulate.fluid import class_work, work_of
from narwhal.simulate.mixes import make_workload, parse_mix
from narwhal.simulate.policies import with_split
from narwhal.simulate.traces import at_rate, compressed, first_seconds, read_trace
from narwhal.simulate.workload import Workload

Traffic = Callable[[float, int], Workload]

STUDY_SLO = Slo(ttft_s=5.0, tpot_s=0.05, ttft_by_prompt=[PromptTarget(up_to_tokens=8192, ttft_s=2.0)])
"""Targets of the control study, for runs without a fleet file."""


CurvesSource = Literal["measured", "simulated", "prior"]
"""Where an engine's curves are from: its own sweep, the profile that its simulated runtime plays, or an assumption."""


def known_curves(expanded: Expanded, engine_id: str) -> tuple[Curves, CurvesSource]:
    """Curves of a fleet's engine, and where they are from. Raises `ProfileError`.

    Those of its newest measured profile (in `profiles.path`, else beside the fleet file), else the simulated
    runtime's, else the prior.
    """
    fleet = expanded.fleet
    measured = engine_profile(expanded.profiles, engine_id)
    if measured is not None:
        return Curves.from_profile(measured), "measured"
    runtime = fleet.engines.runtime
    if not isinstance(runtime, SimulatedRuntime):
        return Curves.from_profile(load_profile(fleet.profiles.prior)), "prior"
    return _faster(load_profile(runtime.profile), runtime.speed), "simulated"


def _faster(profile: Profile, speed: float) -> Curves:
    """A profile's curves with every time divided by `speed`."""
    curves = Curves.from_profile(profile)
    times = ("t_min_s", "a_s", "b_s", "c_s", "d0_s", "d1_s", "d2_s", "transfer_t0_s")
    changes = {name: getattr(curves, name) / speed for name in times}
    return msgspec.structs.replace(curves, **changes, transfer_bytes_per_s=curves.transfer_bytes_per_s * speed)


def fleet_engines(expanded: Expanded, curves: Curves | None = None) -> list[EngineSetup]:
    """The engines of a fleet file, with its curves or others."""
    return [
        EngineSetup(
            spec.id, spec.role, curves or known_curves(expanded, spec.id)[0], spec.pin, spec.shared_device or ""
        )
        for spec in expanded.engines
    ]


def unprofiled(engines: list[EngineSetup], prior: Curves) -> list[EngineSetup]:
    """The engines without a profile: control starts from a prior, with their limits, and learns what they are."""
    return [
        replace(
            engine,
            prior=msgspec.structs.replace(
                prior,
                kv_capacity_tokens=engine.curves.kv_capacity_tokens,
                max_num_seqs=engine.curves.max_num_seqs,
                chunk_tokens=engine.curves.chunk_tokens,
            ),
        )
        for engine in engines
    ]


def fleet_settings(expanded: Expanded) -> Settings:
    """The parts of a fleet file that control reads."""
    return Settings.of(expanded.fleet)


def plain_engines(count: int, curves: Curves) -> list[EngineSetup]:
    """Engines of one kind, half of them prefill."""
    engines = [EngineSetup(f"sim/{index}", "decode", curves) for index in range(count)]
    return with_split(engines, max(count // 2, 1), count - max(count // 2, 1))


def plain_settings() -> Settings:
    """Defaults of the fleet file, with the targets of the control study."""
    return Settings(STUDY_SLO, Serving(), Controller(), Recovery())


def with_admission(settings: Settings, admission: str | None) -> Settings:
    """The settings with another admission: `open` or `predictive`."""
    if admission is None:
        return settings
    return replace(settings, serving=settings.serving.model_copy(update={"admission": admission}))


def mix_traffic(
    text: str, engines: list[EngineSetup], settings: Settings, seconds: float, bodies: Path | None
) -> tuple[Traffic, float]:
    """Traffic of a mix, and the rate at which the fleet would be full by fluid measure.

    Raises `TrafficError`, `TraceError`.
    """
    draws = classes(bodies)
    mix = parse_mix(text, draws)
    curves, tpot_s = engines[0].curves, settings.slo.tpot_s
    work_s = {name: class_work(draws[name], curves, tpot_s).total_s for name in mix.classes}

    def traffic(rate_rps: float, seed: int) -> Workload:
        return make_workload(mix, draws, work_s, rate_rps=rate_rps, seconds=seconds, seed=seed)

    full_rps = len(engines) * len(mix.classes) / sum(work_s[name] for name in mix.classes)
    if mix.kind == "turning":
        full_rps = len(engines) * sum(1 / work_s[name] for name in mix.classes) / len(mix.classes)
    return traffic, full_rps


def trace_traffic(
    path: Path, engines: list[EngineSetup], settings: Settings, seconds: float | None, compress: float
) -> tuple[Traffic, float, float]:
    """Traffic of a trace, the rate at which the fleet would be full by fluid measure, and the trace's own rate.

    Raises `TraceError`.
    """
    trace = compressed(read_trace(path), compress)
    if seconds is not None:
        trace = first_seconds(trace, seconds)
    work = work_of(list(zip(trace.prompts, trace.outputs, strict=True)), engines[0].curves, settings.slo.tpot_s)
    own_rps = trace.rate_rps

    def traffic(rate_rps: float, seed: int) -> Workload:
        return trace if rate_rps == own_rps else at_rate(trace, rate_rps, seed)

    return traffic, len(engines) / work.total_s, own_rps
