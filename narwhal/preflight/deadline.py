"""What the router's deadline for the first token should be, from handoffs that were measured."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from narwhal.preflight.document import CheckResult, FirstToken, Status
from narwhal.preflight.pairs import Outcome, Pair

_FACTOR = 10.0
"""Of the slowest handoff of the longest prompt, measured on idle engines: a full batch and other transfers slow one
down; past ten times, it is rather a producer that hangs."""
_LEAST_S = 2.0
"""Shorter deadlines would take a stall of the machine for a hung engine."""


@dataclass(frozen=True, slots=True)
class Slowest:
    """The slowest first token of all pairs."""

    pair: Pair
    prompt_tokens: int
    seconds: float


def slowest_pair(outcomes: Sequence[Outcome]) -> Slowest | None:
    """The pair whose first token took longest; None when no handoff was measured."""
    measured = [
        Slowest((outcome.producer, outcome.consumer), outcome.prompt_tokens, one.handoff.first_token_s)
        for outcome in outcomes
        for one in outcome.tried
    ]
    return max(measured, key=lambda one: one.seconds, default=None)


def first_token(
    slowest: Slowest, long_tokens: int, long_s: float, configured_s: float, longest_prompt_tokens: int
) -> FirstToken:
    """The deadline that follows from the slowest pair's handoffs of a short prompt and of one of `long_tokens`.

    Time grows linearly with length, as whole blocks move; between two measurements that contradict this, it is taken
    not to grow.
    """
    more_tokens = long_tokens - slowest.prompt_tokens
    slope = max(long_s - slowest.seconds, 0.0) / more_tokens if more_tokens > 0 else 0.0
    longest_s = max(long_s, slowest.seconds) + slope * max(longest_prompt_tokens - long_tokens, 0)
    return FirstToken(
        configured_s=configured_s,
        advised_s=float(max(_LEAST_S, math.ceil(_FACTOR * longest_s))),
        pair=" > ".join(slowest.pair),
        short_tokens=slowest.prompt_tokens,
        short_s=slowest.seconds,
        long_tokens=long_tokens,
        long_s=long_s,
        longest_prompt_tokens=longest_prompt_tokens,
        longest_s=longest_s,
    )


def deadline_check(found: FirstToken) -> CheckResult:
    """Whether the fleet file's deadline is one that healthy handoffs keep."""
    seen = (
        f"first token over {found.pair} after {found.short_s * 1e3:.3g} ms ({found.short_tokens} tokens) and "
        f"{found.long_s * 1e3:.3g} ms ({found.long_tokens}), so {found.longest_s:.3g} s for the longest prompt"
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
