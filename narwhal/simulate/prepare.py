"""What a user asks for, checked and made into a scenario."""

from dataclasses import dataclass
from pathlib import Path

from narwhal.control import Curves
from narwhal.fleet import load_profile, open_fleet
from narwhal.simulate.bodies import TrafficError
from narwhal.simulate.policies import parse_split, with_split
from narwhal.simulate.scenario import Scenario
from narwhal.simulate.setup import (
    fleet_engines,
    fleet_settings,
    mix_traffic,
    plain_engines,
    plain_settings,
    trace_traffic,
    unprofiled,
    with_admission,
)

DEFAULT_LOAD = 0.7
"""Share of what fits by fluid measure, for a mix without a rate."""
DEFAULT_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Ask:
    """The questions of one `narwhal simulate`."""

    fleet: Path | None = None
    trace: Path | None = None
    mix: str | None = None
    bodies: Path | None = None
    seconds: float | None = None
    compress: float = 1.0
    curves: str | None = None
    engines: int | None = None
    split: str | None = None
    admission: str | None = None
    prior: str | None = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A scenario and its rates."""

    name: str
    scenario: Scenario
    rate_rps: float
    """The rate to run at unless another is asked for."""
    full_rps: float
    """The rate at which the fleet would be full by fluid measure."""
    own_arrivals: bool = False
    """It is a trace: at its own rate its requests are the same with every seed."""


def prepare(ask: Ask) -> Prepared:
    """The scenario asked for.

    Raises `TrafficError`, `TraceError`, `PolicyError`, `ProfileError`, `FleetError`, `SourceError`.
    """
    curves = Curves.from_profile(load_profile(ask.curves)) if ask.curves else None
    if ask.fleet is not None:
        expanded = open_fleet(ask.fleet)
        engines, settings = fleet_engines(expanded, curves), fleet_settings(expanded)
    elif curves is None or ask.engines is None:
        raise TrafficError("name a fleet file, or give --curves and --engines, such as --curves 8b-h100 --engines 8")
    else:
        engines, settings = plain_engines(ask.engines, curves), plain_settings()
    if ask.prior:
        engines = unprofiled(engines, Curves.from_profile(load_profile(ask.prior)))
    if ask.split:
        engines = with_split(engines, *parse_split(ask.split))
    settings = with_admission(settings, ask.admission)
    if (ask.trace is None) == (ask.mix is None):
        raise TrafficError("give one of --trace FILE and --mix, such as --mix turning:code,reas:60")
    if ask.trace is not None:
        traffic, full_rps, rate_rps = trace_traffic(ask.trace, engines, settings, ask.seconds, ask.compress)
        scenario = Scenario(tuple(engines), settings, traffic)
        return Prepared(ask.trace.name, scenario, rate_rps, full_rps, own_arrivals=True)
    seconds = ask.seconds or DEFAULT_SECONDS
    traffic, full_rps = mix_traffic(ask.mix or "", engines, settings, seconds, ask.bodies)
    return Prepared(ask.mix or "", Scenario(tuple(engines), settings, traffic), DEFAULT_LOAD * full_rps, full_rps)
