"""The demo's traffic: it turns from prefill-heavy to decode-heavy and back, at rates that only the right split holds.

Rates follow from the engines' own profile, so a demo with six engines is loaded like one with four. In each phase
all engines but one, in the role that matters, run at `_SHARE` of what they can do; an even split would be
overloaded by that share times (N − 1)/(N/2).
"""

from narwhal.control.curves import Curves
from narwhal.measure import Phase

PREFILL_HEAVY = "prefill-heavy"
DECODE_HEAVY = "decode-heavy"
_LONG_PROMPT, _SHORT_ANSWER = 2400, 16
_SHORT_PROMPT, _LONG_ANSWER = 96, 160
_SHARE_PREFILL = 0.8
_SHARE_SEATS = 0.7


def turning_phases(curves: Curves, engines: int, seconds: float) -> list[Phase]:
    """Three phases of equal length: prefill-heavy, decode-heavy, prefill-heavy."""
    third_s = seconds / 3
    prompts = Phase(PREFILL_HEAVY, third_s, _prefill_rate(curves, engines - 1), _LONG_PROMPT, _SHORT_ANSWER)
    answers = Phase(DECODE_HEAVY, third_s, _decode_rate(curves, engines - 1), _SHORT_PROMPT, _LONG_ANSWER)
    return [prompts, answers, prompts]


def _prefill_rate(curves: Curves, engines: int) -> float:
    """Prompts per second that keep `engines` prefill engines busy for the wanted share of their time."""
    return _SHARE_PREFILL * engines / curves.prefill_s(_LONG_PROMPT)


def _decode_rate(curves: Curves, engines: int) -> float:
    """Answers per second that fill the wanted share of the seats of `engines` decode engines (Little's law)."""
    streams = _SHARE_SEATS * curves.max_num_seqs
    interval_s = curves.interval_s(round(streams), round(streams * (_SHORT_PROMPT + _LONG_ANSWER / 2)))
    return engines * streams / (interval_s * _LONG_ANSWER)
