"""What a run was worth: attainment over offered requests, latencies, time to adapt."""

from collections.abc import Sequence
from dataclasses import dataclass

from narwhal.fleet.model import Slo
from narwhal.simulate.request import Request
from narwhal.simulate.workload import Workload

UNSCORED_S = 30.0
"""The first seconds of a run are not scored: queues and batches fill."""
WINDOW_S = 5.0
"""Attainment over time is taken in windows of this length."""
TARGET = 0.9
"""Share of offered requests that has to meet both targets, for goodput and for having adapted."""


@dataclass(frozen=True, slots=True)
class Score:
    """Figures of one run. Times in seconds; None: nothing to measure."""

    offered: int
    """Requests that were scored."""
    attainment: float | None
    """Share of them that met TTFT and TPOT; refused and failed ones missed."""
    refused: int
    failed: int
    ttft_s: tuple[float, float, float] | None
    """p50, p90, p99 of served requests."""
    tpot_s: tuple[float, float, float] | None
    adapt_s: tuple[float, ...]
    """For each turn: seconds until two windows in a row reached the target; at most the phase."""
    counts: tuple[tuple[int, int], ...]
    """Requests offered in each window of the run, and those of them that met their targets."""

    @property
    def windows(self) -> tuple[float | None, ...]:
        """Attainment of each window of the run; None where nothing arrived."""
        return shares(self.counts)


def shares(counts: Sequence[tuple[int, int]]) -> tuple[float | None, ...]:
    """Attainment by (offered, met); None where nothing was offered."""
    return tuple(good / offered if offered else None for offered, good in counts)


def met(request: Request, prompt_tokens: int, slo: Slo) -> bool:
    """Whether a request got its TTFT and its TPOT."""
    return (
        request.outcome == "served" and request.ttft_s <= slo.ttft_for(prompt_tokens) and request.tpot_s <= slo.tpot_s
    )


def score(requests: Sequence[Request], workload: Workload, slo: Slo) -> Score:
    """Score a run that is over. A request still under way counts as failed."""
    hits = [met(request, prompt, slo) for request, prompt in zip(requests, workload.prompts, strict=False)]
    scored = [index for index, request in enumerate(requests) if request.arrived_t >= UNSCORED_S]
    served = [requests[index] for index in scored if requests[index].outcome == "served"]
    refused = sum(requests[index].outcome == "refused" for index in scored)
    counts = _counts(requests, hits, workload.seconds)
    return Score(
        offered=len(scored),
        attainment=sum(hits[index] for index in scored) / len(scored) if scored else None,
        refused=refused,
        failed=len(scored) - len(served) - refused,
        ttft_s=percentiles([request.ttft_s for request in served]),
        tpot_s=percentiles([request.tpot_s for request in served if request.total_tokens > 1]),
        adapt_s=_adapt_s(shares(counts), workload),
        counts=counts,
    )


def percentiles(values: list[float]) -> tuple[float, float, float] | None:
    """p50, p90 and p99 (nearest rank), None of nothing."""
    if not values:
        return None
    values.sort()
    last = len(values) - 1
    return values[round(0.5 * last)], values[round(0.9 * last)], values[round(0.99 * last)]


def _counts(requests: Sequence[Request], hits: list[bool], seconds: float) -> tuple[tuple[int, int], ...]:
    count = int(seconds // WINDOW_S) + 1
    offered, good = [0] * count, [0] * count
    for request, hit in zip(requests, hits, strict=True):
        place = min(int(request.arrived_t // WINDOW_S), count - 1)
        offered[place] += 1
        good[place] += hit
    return tuple(zip(offered, good, strict=True))


def _adapt_s(windows: Sequence[float | None], workload: Workload) -> tuple[float, ...]:
    """Seconds from each turn to the first of two windows in a row at the target; an empty window counts as one."""
    ends = [*workload.turns_s[1:], workload.seconds]
    times = []
    for turn, end in zip(workload.turns_s, ends, strict=False):
        first, last = int(turn // WINDOW_S), min(int(end // WINDOW_S), len(windows))
        reached = [window is None or window >= TARGET for window in windows[first:last]]
        pairs = [place for place in range(len(reached) - 1) if reached[place] and reached[place + 1]]
        times.append(pairs[0] * WINDOW_S if pairs else end - turn)
    return tuple(times)
