"""How far traffic turns between prefill and decode: what moving roles could win at most.

For two phases of equal load with prefill shares s1 and s2 of the work, a split that follows holds at most 1 + |s1 - s2|
times what the best one that stands does (the control study's fluid bound).
"""

from narwhal.advise.case import SHARE_SEED, Base
from narwhal.advise.document import Swing
from narwhal.simulate import work_of

WINDOW_S = 30.0
LEAST = 5
"""Requests without which a window says nothing."""


def swing_of(base: Base) -> Swing:
    """The swing of the traffic at the rate that was asked about."""
    load = base.traffic(base.rate_rps, SHARE_SEED)
    windows: dict[int, list[tuple[int, int]]] = {}
    for t_s, prompt, output in zip(load.times_s, load.prompts, load.outputs, strict=True):
        windows.setdefault(int(t_s // WINDOW_S), []).append((prompt, output))
    curves, tpot_s = base.engines[0].curves, base.settings.slo.tpot_s
    shares = sorted(work_of(w, curves, tpot_s).prefill_share for w in windows.values() if len(w) >= LEAST)
    if not shares:
        return Swing(share=0.0, engines=0.0, bound=1.0)
    last = len(shares) - 1
    share = shares[round(0.9 * last)] - shares[round(0.1 * last)]
    return Swing(share=share, engines=share * len(base.engines), bound=1 + share)
