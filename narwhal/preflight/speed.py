"""Whether engines have a profile, keep its pace, and can keep the promises of the fleet file by it."""

import bisect
from collections.abc import Sequence
from datetime import datetime

from narwhal.control.curves import Curves
from narwhal.fleet import Profile
from narwhal.fleet.model import Slo
from narwhal.preflight.pairs import Verdict

_MEAN_ERROR, _LEFT_OUT_ERROR = 0.10, 0.20
"""Errors at which `narwhal profile` refuses a curve; a profile beyond them was accepted by its options."""
_SLOWER, _MUCH_SLOWER = 1.25, 2.0
_MEASURE = "narwhal profile FLEET"


def judge_profile(profile: Profile | None, contract: str, now: datetime) -> Verdict:
    """Whether a contract was measured, how well its curves fit, and how old they are."""
    if profile is None or profile.measured is None:
        return Verdict("SKIP", f"contract {contract} has no profile", _MEASURE)
    measured = profile.measured
    curves = {"prefill": measured.prefill, "decode": measured.decode, "transfer": measured.transfer}
    told, bad = [], []
    for name, quality in curves.items():
        if quality is None:
            told.append(f"{name} not measured")
            continue
        told.append(f"{name} {quality.mean_error:.1%}, left out {quality.left_out_error:.1%}")
        if quality.mean_error > _MEAN_ERROR or quality.left_out_error > _LEFT_OUT_ERROR:
            bad.append(name)
    days = (now - datetime.fromisoformat(measured.at)).total_seconds() / 86400
    reason = f"{profile.name}, {days:.1f} days old; mean errors: {'; '.join(told)}"
    if bad:
        return Verdict("WARN", f"{reason}; too far from its samples: {', '.join(bad)}", f"{_MEASURE} --fresh")
    return Verdict("ok", reason)


def judge_pace(measured: Sequence[tuple[int, float, float]], profile: Profile) -> Verdict:
    """Decode intervals against the profile's: each (requests, KV tokens, seconds).

    An engine that is faster than a profile taken with loaded neighbours is as it should be.
    """
    curves = Curves.from_profile(profile)
    ratios = [(seconds / curves.interval_s(requests, round(kv)), requests) for requests, kv, seconds in measured]
    told = ", ".join(
        f"batch {requests}: {seconds * 1e3:.3g} ms ({ratio:.2f} of the profile's)"
        for (requests, _, seconds), (ratio, _) in zip(measured, ratios, strict=True)
    )
    slowest = max(ratios)[0]
    if slowest > _MUCH_SLOWER:
        return Verdict("FAIL", f"{told}: more than twice as slow", f"see what else runs there; else {_MEASURE} --fresh")
    if slowest > _SLOWER:
        return Verdict(
            "WARN", f"{told}: slower by more than a quarter", f"see what else runs there; {_MEASURE} --fresh"
        )
    loaded = profile.measured is not None and profile.measured.neighbours == "loaded"
    if min(ratios)[0] < 1 / _SLOWER and not loaded:
        return Verdict("WARN", f"{told}: faster by more than a quarter", f"{_MEASURE} --fresh")
    return Verdict("ok", told)


def judge_slo(profile: Profile, slo: Slo, max_model_len: int) -> Verdict:
    """Whether an idle engine can keep the targets: one request's interval, and the prefill of the longest prompts."""
    curves = Curves.from_profile(profile)
    interval_s = curves.interval_s(1, 0)
    if interval_s > slo.tpot_s:
        said = f"the interval of one request alone, {interval_s * 1e3:.3g} ms, exceeds slo.tpot_s {slo.tpot_s:g} s"
        return Verdict("FAIL", said, "raise slo.tpot_s, or use faster engines")
    longest = max_model_len - 1
    reached = longest_prompt(curves, slo, longest)
    told = f"interval {interval_s * 1e3:.3g} ms of {slo.tpot_s * 1e3:.3g} ms"
    if reached == 0:
        return Verdict("FAIL", f"{told}; no prompt is prefilled within its TTFT target", "raise slo.ttft_s")
    if reached < longest:
        said = f"{told}; prompts of more than {reached} tokens miss their TTFT target even on an idle engine"
        return Verdict("WARN", said, "raise slo.ttft_s, give long prompts a target in slo.ttft_by_prompt, or lower "
                       "engines.max_model_len")  # fmt: skip
    seconds = curves.prefill_s(longest) + curves.transfer_s(longest)
    return Verdict("ok", f"{told}; {longest} tokens in {seconds:.3g} s of {slo.ttft_for(longest):.3g} s")


def longest_prompt(curves: Curves, slo: Slo, most_tokens: int) -> int:
    """Most tokens of a prompt up to which every prompt meets its target on an idle engine; 0: none does.

    Prefill and transfer grow with length and a target is constant up to its bound, so each bound is looked at once.
    """
    bounds = [target.up_to_tokens for target in slo.ttft_by_prompt if target.up_to_tokens < most_tokens] + [most_tokens]
    start = 1
    for bound in bounds:
        target_s = slo.ttft_for(bound)
        lengths = range(start, bound + 1)
        fitting = bisect.bisect_right(lengths, target_s, key=lambda n: curves.prefill_s(n) + curves.transfer_s(n))
        if fitting < len(lengths):
            return start + fitting - 1
        start = bound + 1
    return most_tokens
