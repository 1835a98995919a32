"""What the router's deadline for the first token should be, from handoffs that were measured.

The longest healthy wait for a first token is that of the longest prompt over the slowest pair, when its consumer pulls
from all the others at once and is busy: `at_once · longest + busy`. Beyond it, a producer rather hangs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from narwhal.preflight.document import CheckResult, FirstToken, Status
from narwhal.preflight.pairs import Outcome
from narwhal.preflight.transport import LongHandoff

_LEAST_S = 2.0
"""Shorter deadlines would take a stall of the machine for a hung engine."""
_STEPS = 2
"""Steps of a busy consumer that a first token waits for: the one that runs, and the one that computes it."""


@dataclass(frozen=True, slots=True)
class Busy:
    """What a serving fleet adds to a handoff between idle engines."""

    at_once: int
    """Handoffs that may come to one engine at once; they share its links, so each takes at most so many times as long.

    The other engines, times the prompts that each is given at a time (`serving.prefill_in_flight`).
    """
    step_s: float
    """Longest step of a consumer, in seconds: a full batch of prompt tokens, and decodes within the TPOT target."""


def first_token(
    outcomes: Sequence[Outcome], long: Sequence[LongHandoff], busy: Busy, configured_s: float, longest_prompt: int
) -> FirstToken:
    """The deadline that follows from each pair's handoffs of a short and of a long prompt; `long` is not empty.

    Time grows linearly with length, as whole blocks move; between two measurements that contradict this, it is taken
    not to grow.
    """
    short = {
        (outcome.producer, outcome.consumer): (outcome.prompt_tokens, one.handoff.first_token_s)
        for outcome in outcomes
        for one in sorted(outcome.tried, key=lambda tried: tried.handoff.first_token_s)
    }
    slowest = max(long, key=lambda one: _longest_s(one, *short[one.pair], longest_prompt))
    short_tokens, short_s = short[slowest.pair]
    longest_s = _longest_s(slowest, short_tokens, short_s, longest_prompt)
    busy_s = _STEPS * busy.step_s
    return FirstToken(
        configured_s=configured_s,
        advised_s=float(max(_LEAST_S, math.ceil(busy.at_once * longest_s + busy_s))),
        pair=" > ".join(slowest.pair),
        short_tokens=short_tokens,
        short_s=short_s,
        long_tokens=slowest.prompt_tokens,
        long_s=slowest.first_token_s,
        longest_prompt_tokens=longest_prompt,
        longest_s=longest_s,
        at_once=busy.at_once,
        busy_s=busy_s,
    )


def _longest_s(long: LongHandoff, short_tokens: int, short_s: float, longest_prompt: int) -> float:
    """First token of the longest prompt over a pair, by its two measurements."""
    more_tokens = long.prompt_tokens - short_tokens
    slope = max(long.first_token_s - short_s, 0.0) / more_tokens if more_tokens > 0 else 0.0
    return max(long.first_token_s, short_s) + slope * max(longest_prompt - long.prompt_tokens, 0)


def deadline_check(found: FirstToken) -> CheckResult:
    """Whether the fleet file's deadline is one that healthy handoffs keep."""
    seen = (
        f"first token over {found.pair} after {found.short_s * 1e3:.3g} ms ({found.short_tokens} tokens) and "
        f"{found.long_s * 1e3:.3g} ms ({found.long_tokens}), so {found.longest_s:.3g} s for the longest prompt, "
        f"{found.at_once} times that for as many at once, and {found.busy_s:.3g} s for busy steps"
    )
    step = f"set serving.deadlines.first_token_s: {found.advised_s:g}"
    if found.configured_s == 0:
        return deadline_result("WARN", f"{seen}; no deadline is set: a hung producer holds requests for ever", step)
    if found.configured_s < found.advised_s:
        return deadline_result("WARN", f"{seen}; {found.configured_s:g} s is short of {found.advised_s:g} s", step)
    would_do = f", {found.advised_s:g} s would do" if found.configured_s > found.advised_s else ""
    return deadline_result("ok", f"{seen}; {found.configured_s:g} s is enough{would_do}")


def deadline_result(status: Status, reason: str, next_step: str = "") -> CheckResult:
    """The check `deadline`, of the fleet."""
    return CheckResult(name="deadline", subject="fleet", status=status, reason=reason, next_step=next_step)
