"""The engine's metrics, with vLLM's names and labels, in Prometheus' text format."""

import os
import resource
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from itertools import accumulate

TIME_BUCKETS_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
)  # fmt: skip
GAP_BUCKETS_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0)
BYTES_BUCKETS = tuple(float(2 << (10 + 2 * step)) for step in range(1, 12))
COUNT_BUCKETS = (10.0, 20.0, 30.0, 50.0, 75.0, 100.0, 200.0, 400.0, 1000.0, 2000.0, 4000.0, 10000.0, 20000.0, 50000.0)

HISTOGRAMS: Mapping[str, tuple[tuple[float, ...], str]] = {
    "vllm:time_to_first_token_seconds": (TIME_BUCKETS_S, "Time to the first token, in seconds."),
    "vllm:inter_token_latency_seconds": (GAP_BUCKETS_S, "Time between two tokens, in seconds."),
    "vllm:request_time_per_output_token_seconds": (GAP_BUCKETS_S, "Mean time between a request's tokens, in seconds."),
    "vllm:e2e_request_latency_seconds": (TIME_BUCKETS_S, "Time of a whole request, in seconds."),
    "vllm:request_queue_time_seconds": (TIME_BUCKETS_S, "Time in the queue, in seconds."),
    "vllm:request_prefill_time_seconds": (
        TIME_BUCKETS_S,
        "Time from leaving the queue to the first token, in seconds.",
    ),
    "vllm:request_decode_time_seconds": (TIME_BUCKETS_S, "Time from the first token to the last, in seconds."),
    "vllm:nixl_xfer_time_seconds": (TIME_BUCKETS_S, "Time of a KV transfer, in seconds."),
    "vllm:nixl_post_time_seconds": (TIME_BUCKETS_S, "Time to post a KV transfer, in seconds."),
    "vllm:nixl_bytes_transferred": (BYTES_BUCKETS, "Bytes of a KV transfer."),
    "vllm:nixl_num_descriptors": (COUNT_BUCKETS, "Descriptors of a KV transfer."),
}

COUNTERS: Mapping[str, str] = {
    "vllm:prefix_cache_queries": "Prompt tokens looked up in the prefix cache.",
    "vllm:prefix_cache_hits": "Prompt tokens found in the prefix cache.",
    "vllm:external_prefix_cache_queries": "Prompt tokens looked up at other engines.",
    "vllm:external_prefix_cache_hits": "Prompt tokens whose KV came from other engines.",
    "vllm:prompt_tokens": "Prompt tokens processed.",
    "vllm:prompt_tokens_by_source": "Prompt tokens, by where their KV came from.",
    "vllm:prompt_tokens_cached_by_source": "Cached prompt tokens, by where the cache is.",
    "vllm:generation_tokens": "Tokens generated.",
    "vllm:num_preemptions": "Requests that lost their blocks and started over.",
    "vllm:request_success": "Requests that ended, by reason.",
    "vllm:admission_rejections": "Requests refused because the queue was full.",
    "vllm:nixl_num_failed_transfers": "KV transfers that failed.",
    "vllm:nixl_num_failed_notifications": "Notifications that could not be sent.",
    "vllm:nixl_num_kv_expired_reqs": "Requests whose KV was kept in vain.",
    "vllm:nixl_num_notifications_after_expiry": "Notifications about KV that was already freed.",
}

GAUGES: Mapping[str, str] = {
    "vllm:num_requests_running": "Requests in the batch.",
    "vllm:num_requests_waiting": "Requests that wait.",
    "vllm:num_requests_waiting_by_reason": "Requests that wait, by reason.",
    "vllm:num_requests_kv_fetch_by_stage": "Requests that wait for KV from another engine, by stage.",
    "vllm:kv_cache_usage_perc": "Share of KV blocks that are held, from 0 to 1.",
}


class Histogram:
    """Counts of observations by bucket."""

    def __init__(self, buckets: tuple[float, ...]) -> None:
        self._buckets = buckets
        self._counts = [0] * (len(buckets) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value, or several alike."""
        self._counts[bisect_left(self._buckets, value)] += times
        self._sum += value * times

    def lines(self, name: str, labels: Mapping[str, object]) -> Iterable[str]:
        """The samples in text format."""
        bounds = [*map(str, self._buckets), "+Inf"]
        for bound, count in zip(bounds, accumulate(self._counts), strict=True):
            yield f"{name}_bucket{label_text(labels, le=bound)} {float(count)}"
        yield f"{name}_count{label_text(labels)} {float(sum(self._counts))}"
        yield f"{name}_sum{label_text(labels)} {self._sum}"


def label_text(labels: Mapping[str, object], **more: object) -> str:
    """Labels as they stand after a metric's name: sorted by name, as vLLM's are."""
    return "{" + ",".join(f'{name}="{value}"' for name, value in sorted({**labels, **more}.items())) + "}"


class Metrics:
    """Histograms and counters that the engine keeps up, and the page that shows them with the scheduler's figures."""

    def __init__(self, model: str, started_at_s: float) -> None:
        self._labels = {"engine": "0", "model_name": model}
        self._started_at_s = started_at_s
        self.histograms = {name: Histogram(buckets) for name, (buckets, _) in HISTOGRAMS.items()}
        self.success = dict.fromkeys(("stop", "length", "abort", "error", "repetition"), 0)
        """Ended requests by reason."""
        self.rejections = 0
        self.failed_transfers = 0
        self.failed_notifications = 0
        self.late_notifications = 0

    def observe(self, name: str, value: float, times: int = 1) -> None:
        """Count a value in the histogram of that name."""
        self.histograms[name].observe(value, times)

    def page(self, values: Mapping[str, float | Mapping[str, float]], cache: Mapping[str, object]) -> str:
        """The page: `values` of counters and gauges (by `label=value` where there are several), and the KV layout."""
        lines: list[str] = []
        for names, kind in ((GAUGES, "gauge"), (COUNTERS, "counter")):
            for name, text in names.items():
                shown = name if kind == "gauge" else f"{name}_total"
                lines += [f"# HELP {shown} {text}", f"# TYPE {shown} {kind}"]
                lines += self._samples(shown, values[name])
        for name, (_, text) in HISTOGRAMS.items():
            lines += [f"# HELP {name} {text}", f"# TYPE {name} histogram"]
            lines += self.histograms[name].lines(name, self._labels)
        lines += [
            "# HELP vllm:cache_config_info Layout of the KV cache.",
            "# TYPE vllm:cache_config_info gauge",
            f"vllm:cache_config_info{label_text(cache, engine='0')} 1.0",
        ]
        return "\n".join([*lines, *self._process_lines()]) + "\n"

    def _samples(self, name: str, value: float | Mapping[str, float]) -> Iterable[str]:
        if isinstance(value, Mapping):
            for label, number in value.items():
                key, _, text = label.partition("=")
                yield f"{name}{label_text(self._labels, **{key: text})} {float(number)}"
        else:
            yield f"{name}{label_text(self._labels)} {float(value)}"

    def _process_lines(self) -> list[str]:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        with open("/proc/self/statm") as file:
            resident_bytes = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return [
            "# TYPE process_start_time_seconds gauge",
            f"process_start_time_seconds {self._started_at_s}",
            "# TYPE process_cpu_seconds_total counter",
            f"process_cpu_seconds_total {usage.ru_utime + usage.ru_stime}",
            "# TYPE process_resident_memory_bytes gauge",
            f"process_resident_memory_bytes {float(resident_bytes)}",
        ]
