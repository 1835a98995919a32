"""Small fleets to ask about, of engines and targets so slow that a run has few requests."""

from dataclasses import replace

import msgspec

from narwhal.advise.case import Base
from narwhal.control import Curves
from narwhal.fleet import load_profile
from narwhal.fleet.model import Slo
from narwhal.simulate import mix_traffic, plain_engines, plain_settings

SLOW = 10.0
_8B = Curves.from_profile(load_profile("8b-h100"))
_TIMES = ("t_min_s", "a_s", "b_s", "c_s", "d0_s", "d1_s", "d2_s", "transfer_t0_s")
CURVES = msgspec.structs.replace(_8B, **{name: SLOW * getattr(_8B, name) for name in _TIMES})


def base(
    engines: int = 2,
    mix: str = "steady:code,conv",
    *,
    seconds: float = 90.0,
    load: float = 0.5,
    tpot_s: float = 0.05,
    **curves: float,
) -> Base:
    """A fleet under a mix at a share of its fluid capacity; TPOT target as an engine of usual speed would have it."""
    setups = plain_engines(engines, msgspec.structs.replace(CURVES, **curves))
    settings = plain_settings()
    slo = Slo(ttft_s=2.0 * SLOW, tpot_s=tpot_s * SLOW)
    settings = replace(settings, slo=slo)
    traffic, full_rps = mix_traffic(mix, setups, settings, seconds, None)
    return Base(tuple(setups), settings, traffic, load * full_rps, full_rps)
