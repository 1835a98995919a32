"""The figures of a scheduler, under vLLM's names."""

from collections.abc import Mapping

from narwhal.engine.simulated.metrics import Metrics
from narwhal.engine.simulated.scheduler import Scheduler
from narwhal.engine.simulated.settings import Settings


def metric_values(scheduler: Scheduler, metrics: Metrics) -> Mapping[str, float | Mapping[str, float]]:
    """Counters and gauges as they stand."""
    counts, pool = scheduler.counts, scheduler.pool
    fetch_queue = sum(1 for sequence in scheduler.waiting if sequence.source)
    deferred = len(scheduler.fetching) + len(scheduler.fetched)
    return {
        "vllm:num_requests_running": len(scheduler.running),
        "vllm:num_requests_waiting": len(scheduler.waiting) + deferred,
        "vllm:num_requests_waiting_by_reason": {
            "reason=capacity": len(scheduler.waiting),
            "reason=deferred": deferred,
        },
        "vllm:num_requests_kv_fetch_by_stage": {
            "stage=waiting_to_start": fetch_queue,
            "stage=in_progress": len(scheduler.fetching),
            "stage=completed_waiting": len(scheduler.fetched),
        },
        "vllm:kv_cache_usage_perc": 1 - pool.free_count / pool.count,
        "vllm:prefix_cache_queries": counts.queried_tokens,
        "vllm:prefix_cache_hits": counts.cached_tokens,
        "vllm:external_prefix_cache_queries": counts.external_queried_tokens,
        "vllm:external_prefix_cache_hits": counts.fetched_tokens,
        "vllm:prompt_tokens": counts.prompt_tokens,
        "vllm:prompt_tokens_by_source": {
            "source=local_compute": counts.computed_tokens,
            "source=local_cache_hit": counts.cached_tokens,
            "source=external_kv_transfer": counts.fetched_tokens,
        },
        "vllm:prompt_tokens_cached_by_source": {
            "source=device": counts.cached_tokens,
            "source=host": 0,
            "source=p2p": counts.external_queried_tokens,  # rises even when the transfer fails, as vLLM's does
            "source=disk": 0,
            "source=external_unspecified": 0,
        },
        "vllm:generation_tokens": counts.generated_tokens,
        "vllm:num_preemptions": counts.preemptions,
        "vllm:request_success": {f"finished_reason={reason}": count for reason, count in metrics.success.items()},
        "vllm:admission_rejections": metrics.rejections,
        "vllm:nixl_num_failed_transfers": metrics.failed_transfers,
        "vllm:nixl_num_failed_notifications": metrics.failed_notifications,
        "vllm:nixl_num_kv_expired_reqs": counts.expired_pins,
        "vllm:nixl_num_notifications_after_expiry": metrics.late_notifications,
    }


def cache_config(settings: Settings) -> Mapping[str, object]:
    """The labels of `vllm:cache_config_info`."""
    profile = settings.profile
    blocks = profile.kv_capacity_tokens // profile.block_tokens
    return {
        "block_size": profile.block_tokens,
        "cache_dtype": "auto",
        "enable_prefix_caching": True,
        "kv_cache_size_tokens": blocks * profile.block_tokens,
        "num_gpu_blocks": blocks,
        "prefix_caching_hash_algo": "sha256",
    }
