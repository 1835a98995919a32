"""Answers with a form, cached tokens in usage, and responses: as vLLM answers them."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.contract.engines import Engine, StartEngine

pytestmark = [pytest.mark.e2e, pytest.mark.parametrize("kind", ["simulated"], indirect=True)]
"""Not on the tiny model of the CPU: what it says has no form."""
FreshPrompt = Callable[[int], list[int]]
CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "days": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]


def chat(engine: Engine, **more: object) -> Any:
    reply = engine.send(CHAT, {"messages": HELLO, "temperature": 0, **more})
    assert reply.status == 200, reply.body
    return reply.json()


@pytest.mark.parametrize(
    "form",
    [{"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "w", "schema": SCHEMA}}],
    ids=["object", "schema"],
)
def test_json_is_json_and_ends_by_itself(engine: Engine, form: dict[str, object]) -> None:
    [choice] = chat(engine, response_format=form, max_tokens=200)["choices"]
    document = json.loads(choice["message"]["content"])
    assert choice["finish_reason"] == "stop"
    assert set(document) == (set(SCHEMA["properties"]) if "json_schema" in form else {"answer"})  # type: ignore[call-overload]
    [cut] = chat(engine, response_format=form, max_tokens=3)["choices"]
    assert cut["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("choice", "reason"),
    [
        ("auto", "tool_calls"),
        ("required", "tool_calls"),
        ({"type": "function", "function": {"name": "weather"}}, "stop"),
    ],
    ids=["auto", "required", "named"],
)
def test_a_tool_is_called_with_arguments_of_its_schema(engine: Engine, choice: object, reason: str) -> None:
    body = {"tools": TOOLS, "tool_choice": choice}
    [whole] = chat(engine, **body)["choices"]
    [call] = whole["message"]["tool_calls"]
    arguments = json.loads(call["function"]["arguments"])
    assert (call["type"], call["function"]["name"], whole["finish_reason"]) == ("function", "weather", reason)
    assert (arguments["unit"], arguments["days"]) == ("celsius", 1)
    assert whole["message"]["content"] is None
    events = engine.send(CHAT, {"messages": HELLO, "temperature": 0, "stream": True, **body}).events
    deltas = [event["choices"][0]["delta"] for event in events]
    pieces = [delta["tool_calls"][0]["function"] for delta in deltas if "tool_calls" in delta]
    assert "".join(piece["arguments"] for piece in pieces) == call["function"]["arguments"]
    assert [piece["name"] for piece in pieces if "name" in piece] == ["weather"]
    assert events[-1]["choices"][0]["finish_reason"] == reason


def test_no_tool_is_called_where_none_is_wanted_or_one_has_answered(engine: Engine) -> None:
    result = [*HELLO, {"role": "assistant", "tool_calls": []}, {"role": "tool", "content": "5 degrees"}]
    for more in ({"tool_choice": "none"}, {"messages": result}):
        [choice] = chat(engine, tools=TOOLS, max_tokens=5, **more)["choices"]
        assert choice["message"]["tool_calls"] == []
        assert choice["message"]["content"]


def test_tools_are_part_of_the_prompt(engine: Engine) -> None:
    plain = chat(engine, max_tokens=1)["usage"]["prompt_tokens"]
    assert chat(engine, max_tokens=1, tools=TOOLS, tool_choice="none")["usage"]["prompt_tokens"] > plain


def test_cached_tokens_are_told_where_asked_for(
    engine: Engine, start_engine: StartEngine, fresh_prompt: FreshPrompt
) -> None:
    assert engine.complete("the sea", 1).json()["usage"]["prompt_tokens_details"] is None
    telling = start_engine(enable_prompt_tokens_details=True)
    prompt = fresh_prompt(100)
    told = [telling.complete(prompt, 2).json()["usage"]["prompt_tokens_details"] for _ in range(2)]
    assert told == [{"cached_tokens": 0}, {"cached_tokens": 96}]
    streamed = telling.complete(prompt, 2, stream=True, stream_options={"include_usage": True}).events[-1]
    assert streamed["usage"]["prompt_tokens_details"] == {"cached_tokens": 96}


def test_after_a_handoff_the_cached_tokens_are_the_producer_s(
    start_engine: StartEngine, fresh_prompt: FreshPrompt
) -> None:
    producer, consumer = (start_engine(enable_prompt_tokens_details=True) for _ in range(2))
    prompt = fresh_prompt(100)
    for cached in (0, 96):
        params = producer.leg_1(prompt)
        assert params["remote_prefill_cached_tokens"] == cached
        used = consumer.complete(prompt, 2, kv_transfer_params=params).json()["usage"]
        assert used["prompt_tokens_details"] == {"cached_tokens": cached}


def test_a_response_is_a_chat_in_other_words(engine: Engine) -> None:
    body = {"input": "hello", "max_output_tokens": 5, "temperature": 0}
    whole = engine.send("/v1/responses", body).json()
    [item] = whole["output"]
    text = item["content"][0]["text"]
    assert text == chat(engine, max_tokens=5)["choices"][0]["message"]["content"]
    assert (whole["status"], whole["usage"]["output_tokens"]) == ("incomplete", 5)
    data = engine.send("/v1/responses", {**body, "stream": True}).body.decode()
    assert "[DONE]" not in data
    events = [json.loads(line[6:]) for line in data.splitlines() if line.startswith("data: ")]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]
    assert events[-1]["response"]["status"] == "incomplete"
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert len(deltas) == 5
    assert "".join(deltas) == text


def test_a_response_can_call_a_function(engine: Engine) -> None:
    tool = {"type": "function", "name": "weather", "parameters": SCHEMA}
    [call] = engine.send("/v1/responses", {"input": "hello", "tools": [tool]}).json()["output"]
    assert (call["type"], call["name"]) == ("function_call", "weather")
    assert json.loads(call["arguments"])["days"] == 1
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "5"}
    again = {"input": [{"role": "user", "content": "hello"}, call, result], "tools": [tool], "max_output_tokens": 4}
    assert engine.send("/v1/responses", again).json()["output"][0]["type"] == "message"


def test_what_a_model_of_this_kind_does_not_do_is_not_found(engine: Engine) -> None:
    reply = engine.send("/v1/embeddings", {"input": "hello"})
    assert (reply.status, reply.json()) == (404, {"detail": "Not Found"})
