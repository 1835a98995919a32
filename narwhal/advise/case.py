"""What one simulated run is about: the fleet and traffic as they are, or with one thing changed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec

from narwhal.control import Settings
from narwhal.fleet.model import Slo
from narwhal.simulate import EngineSetup, Scenario, Workload, with_split, work_of

SHARE_SEED = 1
"""Seed of the requests that the prefill share is estimated from."""


@dataclass(frozen=True, slots=True)
class Base:
    """The fleet and its traffic, as they were asked about."""

    engines: tuple[EngineSetup, ...]
    settings: Settings
    traffic: Callable[[float, int], Workload]
    """Requests at a rate (requests per second) and seed."""
    rate_rps: float
    full_rps: float
    """The rate at which the fleet would be full by fluid measure."""
    own_arrivals: bool = False
    """It is a trace: at its own rate its requests are the same with every seed."""


@dataclass(frozen=True, slots=True)
class Case:
    """What differs from the base; factors are on what is there."""

    ttft: float = 1.0
    tpot: float = 1.0
    bandwidth: float = 1.0
    latency: float = 1.0
    """On the constant part of a handoff."""
    prompt: float = 1.0
    output: float = 1.0
    additive: bool = False
    """Prompts and streams of one step share no work."""
    engines: int | None = None
    """Number of engines; None: as many as there are."""

    def scenario(self, base: Base) -> Scenario:
        """The scenario of this case."""
        engines = sized(base, self.engines) if self.engines is not None else base.engines
        settings = replace(base.settings, slo=self._slo(base.settings.slo))
        return Scenario(tuple(self._engine(engine) for engine in engines), settings, self._traffic(base))

    def _engine(self, engine: EngineSetup) -> EngineSetup:
        curves = msgspec.structs.replace(
            engine.curves,
            transfer_t0_s=engine.curves.transfer_t0_s * self.latency,
            transfer_bytes_per_s=engine.curves.transfer_bytes_per_s * self.bandwidth,
        )
        return replace(engine, curves=curves, additive=self.additive)

    def _slo(self, slo: Slo) -> Slo:
        by_prompt = [
            one.model_copy(update={"ttft_s": one.ttft_s * self.ttft}) for one in slo.ttft_by_prompt
        ]  # fmt: skip
        return slo.model_copy(
            update={"ttft_s": slo.ttft_s * self.ttft, "tpot_s": slo.tpot_s * self.tpot, "ttft_by_prompt": by_prompt}
        )

    def _traffic(self, base: Base) -> Callable[[float, int], Workload]:
        if self.prompt == 1.0 and self.output == 1.0:
            return base.traffic

        def scaled(rate_rps: float, seed: int) -> Workload:
            load = base.traffic(rate_rps, seed)
            return replace(
                load,
                prompts=[max(round(tokens * self.prompt), 1) for tokens in load.prompts],
                outputs=[max(round(tokens * self.output), 1) for tokens in load.outputs],
            )

        return scaled


def prefill_share(base: Base) -> float:
    """Share of prefill in the work of the traffic, by fluid measure."""
    load = base.traffic(base.rate_rps, SHARE_SEED)
    bodies = list(zip(load.prompts, load.outputs, strict=True))
    return work_of(bodies, base.engines[0].curves, base.settings.slo.tpot_s).prefill_share


def sized(base: Base, count: int) -> tuple[EngineSetup, ...]:
    """A fleet of `count` engines like the base's, in turn, nobody pinned, with the split that the traffic suggests."""
    own = base.engines
    engines = [
        EngineSetup(f"{own[n % len(own)].id}#{n}", "decode", own[n % len(own)].curves, device=_device(own, n))
        for n in range(count)
    ]
    if count < 2:
        return tuple(engines)
    prefill = min(max(round(count * prefill_share(base)), 1), count - 1)
    return tuple(with_split(engines, prefill, count - prefill))


def _device(own: Sequence[EngineSetup], n: int) -> str:
    """The card of engine `n`: those that share one in the base share one again."""
    device = own[n % len(own)].device
    return f"{device}#{n // len(own)}" if device else ""
