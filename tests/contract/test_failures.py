import http.client
import signal
from collections.abc import Callable

import pytest

from tests.contract.engines import Engine, StartEngine, Streaming

pytestmark = pytest.mark.e2e
FreshPrompt = Callable[[int], list[int]]
INTERNAL = {"message": "Internal server error", "type": "InternalServerError", "param": None, "code": 500}


def meet(producer: Engine, consumer: Engine, prompt: list[int]) -> None:
    """Have two engines shake hands."""
    consumer.tokens(prompt, 1, kv_transfer_params=producer.leg_1(prompt))


def test_a_dead_producer_that_was_met_is_a_500_and_the_consumer_lives_on(
    start_engine: StartEngine, fresh_prompt: FreshPrompt
) -> None:
    producer, consumer = start_engine(), start_engine()
    meet(producer, consumer, fresh_prompt(20))
    prompt = fresh_prompt(50)
    params = producer.leg_1(prompt)
    producer.kill()
    reply = consumer.complete(prompt, kv_transfer_params=params)
    assert (reply.status, reply.json()) == (500, {"error": INTERNAL})
    assert consumer.complete(prompt).status == 200
    assert consumer.metric("vllm:nixl_num_failed_transfers_total") == 1


def test_a_dead_producer_that_was_never_met_is_a_500_after_the_handshake_s_time(
    start_engine: StartEngine, fresh_prompt: FreshPrompt
) -> None:
    producer, consumer = start_engine(), start_engine()
    prompt = fresh_prompt(50)
    params = producer.leg_1(prompt)
    producer.kill()
    assert consumer.complete(prompt, kv_transfer_params=params).status == 500
    assert consumer.metric("vllm:kv_cache_usage_perc") == 0


def test_an_error_in_a_stream_comes_as_an_event_after_a_200(
    start_engine: StartEngine, fresh_prompt: FreshPrompt
) -> None:
    producer, consumer = start_engine(), start_engine()
    meet(producer, consumer, fresh_prompt(20))
    prompt = fresh_prompt(50)
    params = producer.leg_1(prompt)
    producer.kill()
    reply = consumer.complete(prompt, stream=True, kv_transfer_params=params)
    assert (reply.status, reply.events) == (200, [{"error": INTERNAL}])


def test_a_stopped_producer_hangs_its_leg_2_and_nobody_else(
    start_engine: StartEngine, fresh_prompt: FreshPrompt
) -> None:
    producer, consumer = start_engine(), start_engine()
    meet(producer, consumer, fresh_prompt(20))
    prompt = fresh_prompt(50)
    right = consumer.tokens(prompt, cache_salt="elsewhere")
    params = producer.leg_1(prompt)
    producer.stop()
    with Streaming(consumer, prompt, 8, kv_transfer_params=params) as leg_2:
        consumer.eventually(lambda: consumer.metric("vllm:num_requests_kv_fetch_by_stage", stage="in_progress") == 1)
        assert consumer.complete(fresh_prompt(20)).status == 200
        assert consumer.metric("vllm:num_requests_kv_fetch_by_stage", stage="in_progress") == 1
        producer.go_on()
        assert leg_2.tokens() == right


def test_a_restarted_producer_is_another_engine_and_serves_at_once(
    start_engine: StartEngine, fresh_prompt: FreshPrompt
) -> None:
    producer, consumer = start_engine(), start_engine()
    meet(producer, consumer, fresh_prompt(20))
    prompt = fresh_prompt(50)
    old = producer.leg_1(prompt)
    producer.kill()
    again = start_engine(port=producer.port, side_channel_port=old["remote_port"])
    new = again.leg_1(prompt)
    assert new["remote_port"] == old["remote_port"]
    assert new["remote_engine_id"] != old["remote_engine_id"]
    assert again.metric("process_start_time_seconds") > 0
    assert consumer.complete(prompt, kv_transfer_params=old).status == 500
    assert consumer.tokens(prompt, kv_transfer_params=new) == again.tokens(prompt)


def test_a_disconnect_frees_the_blocks(start_engine: StartEngine, fresh_prompt: FreshPrompt) -> None:
    engine = start_engine()
    engine.send("/simulate/faults", {"kind": "slow", "factor": 20})
    with Streaming(engine, fresh_prompt(100), 1000) as stream:
        stream.first_token()
        assert engine.metric("vllm:kv_cache_usage_perc") > 0
    engine.eventually(lambda: engine.metric("vllm:kv_cache_usage_perc") == 0)
    assert engine.metric("vllm:num_requests_running") == 0
    assert engine.metric("vllm:request_success_total", finished_reason="abort") == 0


def test_do_remote_prefill_alone_kills_the_engine(start_engine: StartEngine, fresh_prompt: FreshPrompt) -> None:
    engine = start_engine()
    reply = engine.complete(fresh_prompt(20), kv_transfer_params={"do_remote_prefill": True})
    assert reply.status == 500
    assert engine.process.wait(timeout=30) == 1


def test_sigterm_lets_streams_end_and_takes_nothing_new(start_engine: StartEngine, fresh_prompt: FreshPrompt) -> None:
    engine = start_engine(shutdown_timeout=60)
    prompt = fresh_prompt(100)
    right = engine.tokens(prompt, 200)
    with Streaming(engine, prompt, 200) as stream:
        stream.first_token()
        engine.process.send_signal(signal.SIGTERM)
        engine.eventually(lambda: engine.complete(fresh_prompt(5), 1).status == 500)
        assert engine.send("/health").status == 200
        assert stream.tokens() == right
    assert engine.process.wait(timeout=30) == 0


def test_without_a_shutdown_timeout_sigterm_ends_it_at_once(
    start_engine: StartEngine, fresh_prompt: FreshPrompt
) -> None:
    engine = start_engine()
    engine.send("/simulate/faults", {"kind": "slow", "factor": 1000})
    with Streaming(engine, fresh_prompt(100), 200):
        engine.process.send_signal(signal.SIGTERM)
        assert engine.process.wait(timeout=30) == 0


# --- faults on demand


def test_faults_are_shown_and_removed(engine: Engine) -> None:
    engine.send("/simulate/faults", {"kind": "slow", "factor": 3})
    assert engine.send("/simulate/faults").json() == {"faults": [{"kind": "slow", "factor": 3.0}]}
    assert engine.send("/simulate/faults", method="DELETE").json() == {"faults": []}
    assert engine.send("/simulate/faults", {"kind": "nonsense"}).status == 400


def test_a_status_for_leg_1_leaves_other_requests_alone(engine: Engine, fresh_prompt: FreshPrompt) -> None:
    engine.send("/simulate/faults", {"kind": "status", "code": 500, "leg": 1, "count": 1})
    prompt = fresh_prompt(20)
    assert engine.complete(prompt, 1).status == 200
    assert engine.complete(prompt, 1, kv_transfer_params={"do_remote_decode": True}).status == 500
    assert engine.complete(prompt, 1).status == 200


def test_a_cut_stream_ends_in_the_middle(engine: Engine, fresh_prompt: FreshPrompt) -> None:
    engine.send("/simulate/faults", {"kind": "cut_stream", "after_tokens": 3, "count": 1})
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        engine.complete(fresh_prompt(20), 50, stream=True)
    assert len(engine.tokens(fresh_prompt(20), 50, stream=False)) == 50


def test_a_hung_engine_answers_when_the_hang_is_over(engine: Engine) -> None:
    engine.send("/simulate/faults", {"kind": "hang"})
    with pytest.raises(TimeoutError):
        engine.send("/health", timeout_s=0.5)
    engine.send("/simulate/faults", method="DELETE")
    assert engine.send("/health").status == 200


def test_hung_prefill_leaves_decode_alone(start_engine: StartEngine, fresh_prompt: FreshPrompt) -> None:
    engine = start_engine()
    engine.send("/simulate/faults", {"kind": "slow", "factor": 10})
    with Streaming(engine, fresh_prompt(20), 40) as stream:
        stream.first_token()
        engine.send("/simulate/faults", {"kind": "hang", "scope": "prefill"})
        with Streaming(engine, fresh_prompt(20), 5) as waiting:
            assert len(stream.tokens()) >= 30
            assert engine.metric("vllm:num_requests_waiting") == 1
            engine.send("/simulate/faults", method="DELETE")
            assert len(waiting.tokens()) == 5


@pytest.mark.parametrize("side", ["producer", "consumer"])
def test_corrupt_kv_gives_another_answer(
    engine_pair: tuple[Engine, Engine], fresh_prompt: FreshPrompt, side: str
) -> None:
    producer, consumer = engine_pair
    faulty = producer if side == "producer" else consumer
    prompt = fresh_prompt(100)
    params = producer.leg_1(prompt)
    faulty.send("/simulate/faults", {"kind": "corrupt_kv", "side": side, "count": 1})
    wrong = consumer.tokens(prompt, kv_transfer_params=params)
    assert wrong != producer.tokens(prompt)


def test_a_dropped_peer_is_a_failed_leg_2(start_engine: StartEngine, fresh_prompt: FreshPrompt) -> None:
    producer, consumer = start_engine(), start_engine()
    meet(producer, consumer, fresh_prompt(20))
    prompt = fresh_prompt(50)
    params = producer.leg_1(prompt)
    producer.send("/simulate/faults", {"kind": "drop_peer", "count": 1})
    assert consumer.complete(prompt, kv_transfer_params=params).status == 500
    assert consumer.tokens(prompt, kv_transfer_params=producer.leg_1(prompt)) == producer.tokens(prompt)


def test_a_crash_fault_ends_the_process(start_engine: StartEngine, fresh_prompt: FreshPrompt) -> None:
    engine = start_engine()
    engine.send("/simulate/faults", {"kind": "crash"})
    with pytest.raises(ConnectionError):
        engine.complete(fresh_prompt(20))
    assert engine.process.wait(timeout=30) == 137
