"""An engine that is given a prompt and the beginning of its answer goes on as the one that began it would have."""

from typing import Any

import pytest

from tests.contract.engines import Engine, FreshPrompt

pytestmark = pytest.mark.e2e
CUTS = (1, 2, 3, 7, 15)
CHAT = {"messages": [{"role": "user", "content": "tell me about the sea"}], "temperature": 0, "ignore_eos": True}


def test_a_completion_goes_on_over_two_legs(engine_pair: tuple[Engine, Engine], fresh_prompt: FreshPrompt) -> None:
    producer, consumer = engine_pair
    prompt = fresh_prompt(producer.kind.block_tokens + 3)
    answer = consumer.tokens(prompt, 20, ignore_eos=True)
    for cut in CUTS:
        begun = prompt + answer[:cut]
        params = producer.leg_1(begun)
        rest = consumer.tokens(begun, 20 - cut, ignore_eos=True, kv_transfer_params=params)
        assert rest == answer[cut:]


def chat_text(events: list[dict[str, Any]]) -> str:
    return "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])


def test_a_chat_goes_on_over_two_legs_by_token_ids(engine_pair: tuple[Engine, Engine]) -> None:
    producer, consumer = engine_pair
    ask = {"model": consumer.model, **CHAT}
    body = {**ask, "max_tokens": 20, "stream": True, "return_token_ids": True}
    events = consumer.send("/v1/chat/completions", body).events
    prompt = events[0]["prompt_token_ids"]
    chunks = [(choice["token_ids"] or [], choice["delta"].get("content") or "") for event in events[1:]
              for choice in event["choices"]]  # fmt: skip
    answer, text = [token for ids, _ in chunks for token in ids], "".join(text for _, text in chunks)
    assert len(answer) == 20
    for cut in CUTS:
        said = consumer.send("/detokenize", {"model": consumer.model, "tokens": answer[:cut]}).json()["prompt"]
        if said.endswith("�"):
            continue  # amid a character nobody goes on
        begun = prompt + answer[:cut]
        leg_1 = {**ask, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True, "prompt_token_ids": begun}}
        reply = producer.send("/v1/chat/completions", leg_1).json()
        assert reply["usage"]["prompt_tokens"] == len(begun)
        params = {**reply["kv_transfer_params"], "prompt_token_ids": begun}
        leg_2 = {**body, "max_tokens": 20 - cut, "kv_transfer_params": params}
        rest = consumer.send("/v1/chat/completions", leg_2).events
        ids = [token for event in rest for choice in event["choices"] for token in choice.get("token_ids") or []]
        assert ids == answer[cut:]
        assert said.lstrip(" ") + chat_text(rest) == text.lstrip(" ")
