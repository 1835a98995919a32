"""Engines that hang, restart, die and leave. The last file of the suite: vLLM takes long to start again."""

import signal

import pytest

from tests.contract.engines import PATIENCE_S, Engine, FreshPrompt, Streaming
from tests.contract.kinds import Kind

pytestmark = pytest.mark.e2e
INTERNAL = {"message": "Internal server error", "type": "InternalServerError", "param": None, "code": 500}


def meet(producer: Engine, consumer: Engine, prompt: list[int]) -> None:
    """Have two engines shake hands."""
    consumer.tokens(prompt, 1, kv_transfer_params=producer.leg_1(prompt))


def test_a_disconnect_frees_the_blocks(engine: Engine, fresh_prompt: FreshPrompt) -> None:
    engine.eventually(lambda: engine.usage() == 0)
    with Streaming(engine, fresh_prompt(100), 1900, ignore_eos=True) as stream:
        stream.first_token()
        engine.eventually(lambda: engine.usage() > 0)
        began = engine.metric("vllm:generation_tokens_total")
    engine.eventually(lambda: engine.usage() == 0 == engine.metric("vllm:num_requests_running"))
    assert engine.metric("vllm:generation_tokens_total") - began < 1900
    assert engine.metric("vllm:request_success_total", finished_reason="abort") == 0


def test_a_stopped_producer_hangs_its_leg_2_and_nobody_else(
    victim: Engine, engine: Engine, fresh_prompt: FreshPrompt
) -> None:
    producer, consumer = victim, engine
    meet(producer, consumer, fresh_prompt(20))
    prompt = fresh_prompt(50)
    right = consumer.tokens(prompt, cache_salt="elsewhere")
    params = producer.leg_1(prompt)
    producer.stop()
    try:
        with Streaming(consumer, prompt, 8, kv_transfer_params=params) as leg_2:
            fetching = lambda: consumer.metric("vllm:num_requests_kv_fetch_by_stage", stage="in_progress")  # noqa: E731
            consumer.eventually(lambda: fetching() == 1)
            assert consumer.complete(fresh_prompt(20)).status == 200
            assert fetching() == 1
            producer.go_on()
            assert leg_2.tokens() == right
    finally:
        producer.go_on()


def test_a_restarted_producer_is_another_engine_and_serves_at_once(
    kind: Kind, victim: Engine, engine: Engine, fresh_prompt: FreshPrompt
) -> None:
    consumer = engine
    meet(victim, consumer, fresh_prompt(20))
    prompt = fresh_prompt(50)
    old = victim.leg_1(prompt)
    started_at = victim.metric("process_start_time_seconds")
    victim.kill()
    again = kind.again(victim)
    new = again.leg_1(prompt)
    assert new["remote_port"] == old["remote_port"]
    assert new["remote_engine_id"] != old["remote_engine_id"]
    assert again.metric("process_start_time_seconds") > started_at > 0
    assert consumer.complete(prompt, kv_transfer_params=old).status == 500
    assert consumer.tokens(prompt, kv_transfer_params=new) == again.tokens(prompt)


def test_a_dead_producer_is_a_500_and_the_consumer_lives_on(
    victim: Engine, engine: Engine, fresh_prompt: FreshPrompt
) -> None:
    consumer = engine
    meet(victim, consumer, fresh_prompt(20))
    failed = consumer.metric("vllm:nixl_num_failed_transfers_total")
    prompts = [fresh_prompt(50) for _ in range(2)]
    handoffs = [victim.leg_1(prompt) for prompt in prompts]
    victim.kill()
    reply = consumer.complete(prompts[0], kv_transfer_params=handoffs[0])
    assert (reply.status, reply.json()) == (500, {"error": INTERNAL})
    reply = consumer.complete(prompts[1], stream=True, kv_transfer_params=handoffs[1])
    assert (reply.status, reply.events) == (200, [{"error": INTERNAL}])
    assert consumer.complete(prompts[0]).status == 200
    consumer.eventually(lambda: consumer.usage() == 0)
    consumer.eventually(lambda: consumer.metric("vllm:nixl_num_failed_transfers_total") > failed)


def test_do_remote_prefill_alone_kills_the_engine_and_a_consumer_that_never_met_it_gives_up(
    victim: Engine, engine: Engine, fresh_prompt: FreshPrompt
) -> None:
    prompt = fresh_prompt(50)
    handoff = victim.leg_1(prompt)
    reply = victim.complete(fresh_prompt(20), kv_transfer_params={"do_remote_prefill": True})
    assert reply.status == 500
    victim.process.wait(timeout=PATIENCE_S)
    assert engine.complete(prompt, kv_transfer_params=handoff).status == 500
    engine.eventually(lambda: engine.usage() == 0)


def test_sigterm_lets_streams_end_and_takes_nothing_new(
    victim: Engine, engine: Engine, fresh_prompt: FreshPrompt
) -> None:
    prompt = fresh_prompt(100)
    right = engine.tokens(prompt, 1500, ignore_eos=True)
    with Streaming(victim, prompt, 1500, ignore_eos=True) as stream:
        stream.first_token()
        victim.process.send_signal(signal.SIGTERM)
        victim.eventually(lambda: refuses(victim, fresh_prompt(5)))
        assert health(victim) in (200, GONE)
        assert stream.tokens() == right
    assert victim.process.wait(timeout=PATIENCE_S) == 0


GONE = 0
"""On a quick machine the stream, and then the engine, has ended before anybody asks."""


def health(engine: Engine) -> int:
    """The status of /health; `GONE` when nobody listens any more."""
    try:
        return engine.send("/health").status
    except ConnectionError:
        return GONE


def refuses(engine: Engine, prompt: list[int]) -> bool:
    """Whether an engine that was told to end takes nothing new: it answers 500, or (vLLM, while it drains) never."""
    try:
        return engine.send("/v1/completions", {"prompt": prompt, "max_tokens": 1}, timeout_s=5).status == 500
    except (TimeoutError, ConnectionError):
        return True
