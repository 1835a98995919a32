import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from tests.contract.engines import Engine, FreshPrompt, Streaming

pytestmark = pytest.mark.e2e
Overwrite = Callable[[Engine], None]
FIELDS = {
    "do_remote_prefill",
    "do_remote_decode",
    "remote_block_ids",
    "remote_engine_id",
    "remote_request_id",
    "remote_host",
    "remote_port",
    "tp_size",
    "dcp_size",
    "pp_size",
    "remote_num_tokens",
    "remote_blocks_expiry_time",
    "transfer_mode",
    "remote_prefill_cached_tokens",
}


@pytest.mark.parametrize("turned", [False, True], ids=["there", "back"])
def test_two_legs_give_the_answer_of_one_engine_in_both_directions(
    engine_pair: tuple[Engine, Engine], fresh_prompt: FreshPrompt, turned: bool
) -> None:
    producer, consumer = engine_pair[::-1] if turned else engine_pair
    for length in (5, producer.kind.block_tokens, 100, 300):
        prompt = fresh_prompt(length)
        params = producer.leg_1(prompt)
        two_legs = consumer.tokens(prompt, 20, ignore_eos=True, kv_transfer_params=params)
        assert two_legs == producer.tokens(prompt, 20, ignore_eos=True)


def test_kv_is_moved_and_nothing_is_computed_again(
    engine_pair: tuple[Engine, Engine], fresh_prompt: FreshPrompt
) -> None:
    producer, consumer = engine_pair
    names = {
        "fetched": ("vllm:prompt_tokens_by_source_total", {"source": "external_kv_transfer"}),
        "computed": ("vllm:prompt_tokens_by_source_total", {"source": "local_compute"}),
        "hits": ("vllm:external_prefix_cache_hits_total", {}),
        "bytes": ("vllm:nixl_bytes_transferred_sum", {}),
    }
    prompt = fresh_prompt(300)
    before = {key: consumer.metric(name, **labels) for key, (name, labels) in names.items()}

    def moved() -> dict[str, float]:
        return {key: consumer.metric(name, **labels) - before[key] for key, (name, labels) in names.items()}

    consumer.tokens(prompt, 4, kv_transfer_params=producer.leg_1(prompt))
    kind = consumer.kind
    whole_blocks = -(-300 // kind.block_tokens) * kind.block_tokens
    consumer.eventually(lambda: moved()["bytes"] > 0)  # metrics follow the engine's steps
    assert moved() == {"fetched": 300, "computed": 0, "hits": 300, "bytes": whole_blocks * kind.kv_bytes_per_token}


def test_leg_1_s_answer_holds_what_vllm_puts_there(
    engine_pair: tuple[Engine, Engine], fresh_prompt: FreshPrompt
) -> None:
    prompt = fresh_prompt(40)
    params = engine_pair[0].leg_1(prompt)
    blocks = -(-40 // engine_pair[0].kind.block_tokens)
    assert set(params) == FIELDS
    assert (params["do_remote_prefill"], params["do_remote_decode"]) == (True, False)
    assert (params["remote_num_tokens"], len(params["remote_block_ids"][0])) == (40, blocks)
    engine_pair[1].tokens(prompt, 1, kv_transfer_params=params)


def test_kv_of_another_prompt_gives_another_answer(
    engine_pair: tuple[Engine, Engine], fresh_prompt: FreshPrompt
) -> None:
    producer, consumer = engine_pair
    params = producer.leg_1(fresh_prompt(100))
    other = fresh_prompt(100)
    assert consumer.tokens(other, kv_transfer_params=params) != producer.tokens(other)


def test_a_chat_may_go_on_as_a_completion_with_its_token_ids(engine_pair: tuple[Engine, Engine]) -> None:
    producer, consumer = engine_pair
    chat = {"model": "contract", "messages": [{"role": "user", "content": "tell me about the sea"}], "temperature": 0}
    leg_1 = {**chat, "max_tokens": 1, "return_token_ids": True, "kv_transfer_params": {"do_remote_decode": True}}
    answer = producer.send("/v1/chat/completions", leg_1).json()
    assert answer["kv_transfer_params"]["remote_request_id"].startswith(answer["id"])
    leg_2 = consumer.tokens(answer["prompt_token_ids"], 9, kv_transfer_params=answer["kv_transfer_params"])
    whole = producer.send("/v1/chat/completions", {**chat, "max_tokens": 9, "return_token_ids": True}).json()
    assert leg_2 == whole["choices"][0]["token_ids"]


def test_a_handoff_frees_the_producer_s_blocks(engine_pair: tuple[Engine, Engine], fresh_prompt: FreshPrompt) -> None:
    producer, consumer = engine_pair
    producer.eventually(lambda: producer.usage() == 0)
    prompt = fresh_prompt(64)
    params = producer.leg_1(prompt)
    producer.eventually(lambda: producer.usage() > 0)
    assert producer.metric("vllm:num_requests_running") == 0
    consumer.tokens(prompt, 2, kv_transfer_params=params)
    producer.eventually(lambda: producer.usage() == 0)


@pytest.mark.parametrize(("change", "status"), [({"temperature": -1}, 400), ({"model": "nope"}, 404)])
def test_a_refused_leg_2_frees_the_producer_s_blocks(
    engine_pair: tuple[Engine, Engine], fresh_prompt: FreshPrompt, change: dict[str, Any], status: int
) -> None:
    producer, consumer = engine_pair
    prompt = fresh_prompt(64)
    params = producer.leg_1(prompt)
    assert consumer.complete(prompt, kv_transfer_params=params, **change).status == status
    producer.eventually(lambda: producer.usage() == 0)


EXPIRED = "vllm:nixl_num_kv_expired_reqs_total"


def test_only_the_first_of_several_prompts_can_be_handed_over(
    brief_pair: tuple[Engine, Engine], fresh_prompt: FreshPrompt
) -> None:
    engine = brief_pair[0]
    before = engine.metric(EXPIRED)
    reply = engine.complete([fresh_prompt(20), fresh_prompt(20)], 1, kv_transfer_params={"do_remote_decode": True})
    assert len(reply.json()["kv_transfer_params"]["remote_block_ids"]) == 1
    engine.eventually(lambda: engine.metric(EXPIRED) - before == 2)


def test_a_streamed_leg_1_says_nothing_and_keeps_its_blocks_to_the_end_of_the_lease(
    brief_pair: tuple[Engine, Engine], fresh_prompt: FreshPrompt
) -> None:
    engine = brief_pair[0]
    before = engine.metric(EXPIRED)
    engine.eventually(lambda: engine.usage() == 0)
    reply = engine.complete(fresh_prompt(40), 1, stream=True, kv_transfer_params={"do_remote_decode": True})
    assert b"kv_transfer_params" not in reply.body
    engine.eventually(lambda: engine.usage() > 0)
    engine.eventually(lambda: engine.usage() == 0)
    engine.eventually(lambda: engine.metric(EXPIRED) - before == 1)


def test_leg_2_after_the_lease_is_200_and_wrong_once_the_blocks_were_reused(
    brief_pair: tuple[Engine, Engine], fresh_prompt: FreshPrompt, overwrite: Overwrite
) -> None:
    producer, consumer = brief_pair
    before = producer.metric(EXPIRED)
    prompt = fresh_prompt(100)
    right = producer.tokens(prompt)
    params = producer.leg_1(prompt)
    producer.eventually(lambda: producer.metric(EXPIRED) - before == 1)
    overwrite(producer)
    assert consumer.tokens(prompt, kv_transfer_params=params) != right

    def told() -> bool:
        producer.complete(fresh_prompt(5), 1)  # an engine at rest takes no notifications
        return "unrecognized request" in producer.log.read_text()

    producer.eventually(told)


def test_leg_2_twice_is_200_and_wrong_once_the_blocks_were_reused(
    engine_pair: tuple[Engine, Engine], fresh_prompt: FreshPrompt, overwrite: Overwrite
) -> None:
    producer, consumer = engine_pair
    prompt = fresh_prompt(100)
    params = producer.leg_1(prompt)
    right = consumer.tokens(prompt, kv_transfer_params=params)
    producer.eventually(lambda: producer.usage() == 0)
    overwrite(producer)
    again = consumer.tokens(prompt, kv_transfer_params=params, cache_salt="so that the consumer has no cached prefix")
    assert again != right == producer.tokens(prompt)


def test_waiting_in_the_consumer_s_queue_renews_the_lease(
    brief_pair: tuple[Engine, Engine], fresh_prompt: FreshPrompt
) -> None:
    """Streams that fill the cache run one after another before leg 2, for twice the lease in all.

    A machine that stands still for a lease loses it all the same, so it may be tried again.
    """
    consumer, producer = brief_pair
    lease_s = consumer.kind.brief_lease_s
    meeting = fresh_prompt(20)
    consumer.tokens(meeting, 1, kv_transfer_params=producer.leg_1(meeting))
    started_t = time.monotonic()
    consumer.complete(fresh_prompt(1200), 840, ignore_eos=True)  # no room for another one or for leg 2 beside it
    fillers = math.ceil(2 * lease_s / (time.monotonic() - started_t))

    def renewed() -> bool:
        before, prompt = producer.metric(EXPIRED), fresh_prompt(1000)
        right = producer.tokens(prompt)
        with ExitStack() as ahead:
            for _ in range(fillers):
                ahead.enter_context(Streaming(consumer, fresh_prompt(1200), 840, ignore_eos=True))
            params = producer.leg_1(prompt)
            kept_t = time.monotonic()
            with Streaming(consumer, prompt, 8, kv_transfer_params=params) as leg_2:
                told = leg_2.tokens()
        assert time.monotonic() - kept_t > lease_s
        return told == right and producer.metric(EXPIRED) == before

    assert any(renewed() for _ in range(3))
