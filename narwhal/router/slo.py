"""Whether an answer came in time."""

from narwhal.fleet.model import Slo


def within(slo: Slo, prompt_tokens: int, ttft_s: float | None, tpot_s: float | None, *, whole_tokens: int = 0) -> bool:
    """Whether an answer met its targets. Times in seconds.

    `whole_tokens`: the length of an answer that came in one piece, whose `ttft_s` is the time to its end; it may take
    as long as a stream of so many tokens might.
    """
    rest_s = (whole_tokens - 1) * slo.tpot_s if whole_tokens > 1 else 0.0
    return (ttft_s or 0.0) <= slo.ttft_for(prompt_tokens) + rest_s and (tpot_s or 0.0) <= slo.tpot_s
