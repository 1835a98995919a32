"""GuideLLM: `benchmarks.json`, a point for each of its benchmarks.

What it calls time per output token is the whole answer's time over its tokens, the first one's included; its inter
token latency is the time from the first token to the last over the tokens after the first, which is TPOT here. It keeps
no times of single tokens, so there are no gaps. Checked with 0.8.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from narwhal.report.others.told import Result, Told, load_name, told_point
from narwhal.report.taken import Taken

Json = dict[str, Any]
RESULTS: dict[str, Result] = {"successful": "served", "errored": "failed", "incomplete": "cancelled"}
"""Its lists of requests, and what became of them."""


def is_guidellm(document: Any) -> bool:
    """Whether a document is GuideLLM's report."""
    about = document.get("metadata") if isinstance(document, dict) else None
    return isinstance(about, dict) and "guidellm_version" in about and "benchmarks" in document


def guidellm_points(document: Json, where: str) -> list[Taken]:
    """A point for each benchmark."""
    return [_point(benchmark, where) for benchmark in document["benchmarks"]]


def _point(benchmark: Json, where: str) -> Taken:
    strategy = benchmark["config"]["strategy"]
    rate = strategy.get("rate")
    name = load_name(strategy["type_"], rate if rate is not None else strategy.get("streams"))
    started = datetime.fromtimestamp(benchmark["start_time"], UTC)
    at = started.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return told_point(list(_requests(benchmark["requests"])), "guidellm", name, rate, where, at)


def _requests(lists: Json) -> Iterator[Told]:
    for kept, result in RESULTS.items():
        for request in lists.get(kept) or []:
            timings = (request.get("info") or {}).get("timings") or {}
            sent_s, planned_s = request.get("request_start_time"), timings.get("targeted_start")
            if sent_s is None:
                sent_s = planned_s
            if sent_s is None:
                continue  # it was never sent
            yield Told(
                sent_s=sent_s,
                result=result,
                prompt_tokens=request.get("prompt_tokens") or 0,
                tokens=request.get("output_tokens") or 0,
                ttft_s=_seconds(request.get("time_to_first_token_ms")),
                tpot_s=_seconds(request.get("inter_token_latency_ms")),
                lag_s=None if planned_s is None else sent_s - planned_s,
            )


def _seconds(value_ms: float | None) -> float | None:
    return None if value_ms is None else value_ms / 1e3
