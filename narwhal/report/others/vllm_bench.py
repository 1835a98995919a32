"""`vllm bench serve --save-result --save-detailed`: one point.

Its TPOT is the time from the first token to the end of the answer over the tokens after the first, as here; its ITL are
times between chunks. Its own quantiles leave out failed requests, and interpolate. Without --save-detailed there are no
requests to be had, and nothing is taken. Checked with 0.32.
"""

import math
from collections.abc import Iterator
from typing import Any

from narwhal.report.others.errors import ResultError
from narwhal.report.others.told import Told, load_name, told_point
from narwhal.report.taken import Taken

Json = dict[str, Any]


def is_vllm_bench(document: Any) -> bool:
    """Whether a document is such a result."""
    return isinstance(document, dict) and {"request_rate", "burstiness", "num_prompts"} <= document.keys()


def vllm_bench_points(document: Json, where: str) -> list[Taken]:
    """The one point of a result. Raises `ResultError` when it was saved without its requests."""
    if "ttfts" not in document:
        raise ResultError("it holds no single requests: vllm bench serve needs --save-detailed too")
    rate = float(document["request_rate"])  # `inf`: all at once
    asked = rate if math.isfinite(rate) else None
    kind = "burst" if asked is None else "poisson" if document["burstiness"] == 1 else "gamma"
    requests = list(_requests(document))
    return [told_point(requests, "vllm-bench", load_name(kind, asked), asked, where, _moment(document.get("date", "")))]


def _requests(document: Json) -> Iterator[Told]:
    columns = ("start_times", "input_lens", "output_lens", "ttfts", "itls", "errors")
    for sent_s, prompt, tokens, ttft_s, gaps, error in zip(*(document[name] for name in columns), strict=True):
        if error:
            yield Told(sent_s, "failed")
        else:
            tpot_s = sum(gaps) / (tokens - 1) if tokens > 1 else None
            yield Told(sent_s, "served", prompt, tokens, ttft_s, tpot_s, max(gaps) if gaps else None)


def _moment(date: str) -> str:
    """`20261130-195815` as `2026-11-30T19:58:15`: local time, of which nobody says the zone."""
    if len(date) != len("20261130-195815"):
        return ""
    return f"{date[:4]}-{date[4:6]}-{date[6:8]}T{date[9:11]}:{date[11:13]}:{date[13:]}"
