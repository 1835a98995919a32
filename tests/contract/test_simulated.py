"""What only the simulated engine has: faults on demand, and options that a test chooses."""

import http.client
import signal

import pytest

from tests.contract.engines import Engine, FreshPrompt, StartEngine, Streaming
from tests.contract.test_trouble import meet

pytestmark = [pytest.mark.e2e, pytest.mark.parametrize("kind", ["simulated"], indirect=True)]


def test_without_a_shutdown_timeout_sigterm_ends_it_at_once(
    start_engine: StartEngine, fresh_prompt: FreshPrompt
) -> None:
    engine = start_engine()
    engine.send("/simulate/faults", {"kind": "slow", "factor": 1000})
    with Streaming(engine, fresh_prompt(100), 200):
        engine.process.send_signal(signal.SIGTERM)
        assert engine.process.wait(timeout=30) == 0


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
    producer.send("/simulate/faults", {"kind": "drop_peer"})
    assert consumer.complete(prompt, kv_transfer_params=params).status == 500
    producer.send("/simulate/faults", method="DELETE")
    assert consumer.tokens(prompt, kv_transfer_params=producer.leg_1(prompt)) == producer.tokens(prompt)


def test_a_crash_fault_ends_the_process(start_engine: StartEngine, fresh_prompt: FreshPrompt) -> None:
    engine = start_engine()
    engine.send("/simulate/faults", {"kind": "crash"})
    with pytest.raises(ConnectionError):
        engine.complete(fresh_prompt(20))
    assert engine.process.wait(timeout=30) == 137


def test_a_stream_interval_merges_tokens_into_chunks(start_engine: StartEngine, fresh_prompt: FreshPrompt) -> None:
    engine = start_engine(stream_interval=4)
    events = engine.complete(fresh_prompt(20), 10, stream=True, return_token_ids=True).events
    assert [len(event["choices"][0]["token_ids"]) for event in events] == [4, 4, 2]


def test_answers_to_other_scripts_hold_characters_of_several_tokens(start_engine: StartEngine) -> None:
    """As on a real engine: text comes with whole characters, and a prompt that ends inside one is told again."""
    engine = start_engine()
    prompt = engine.send("/tokenize", {"prompt": "où est la mer ?"}).json()["tokens"]
    events = engine.complete(prompt, 60, stream=True, return_token_ids=True).events
    chunks = [(event["choices"][0]["token_ids"], event["choices"][0]["text"]) for event in events]
    answer, text = [token for ids, _ in chunks for token in ids], "".join(text for _, text in chunks)
    assert "�" not in text
    inside = 0
    for cut in range(1, 60):
        said = engine.send("/detokenize", {"tokens": answer[:cut]}).json()["prompt"]
        rest = "".join(
            event["choices"][0]["text"]
            for event in engine.complete(prompt + answer[:cut], 60 - cut, stream=True).events
        )
        if said.endswith("�"):
            inside += 1
            assert chunks[cut - 1] == ([answer[cut - 1]], "")
            assert rest.startswith("où est la mer ?")
        else:
            assert said + rest == text
    assert inside
