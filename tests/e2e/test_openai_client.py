"""The OpenAI client, unmodified, on everything that it does with a chat model: each answer the single engine's own."""

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.e2e.routers import Fleet, fleet_of
from tests.router.harness import eventually

pytestmark = pytest.mark.e2e
ASK: Any = [{"role": "user", "content": "What did the narwhal see under the ice, and how cold was it there?"}]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS: Any = [{"type": "function", "function": {"name": "weather", "description": "now", "parameters": SCHEMA}}]
FUNCTION: Any = {"type": "function", "name": "weather", "parameters": SCHEMA, "strict": True}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    args = "256\n  args: {enable-prompt-tokens-details: true}"
    with fleet_of(tmp_path_factory.mktemp("fleet"), 2, speed=4.0, seqs=args) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def routed(fleet: Fleet) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{fleet.router.url}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def alone(fleet: Fleet) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{fleet.expanded.engines[-1].url}/v1", api_key="none", max_retries=0)


def both(routed: openai.OpenAI, alone: openai.OpenAI, **more: Any) -> tuple[Any, Any]:
    asked: dict[str, Any] = {"model": "m", "messages": ASK, "temperature": 0, "max_tokens": 60, **more}
    return routed.chat.completions.create(**asked), alone.chat.completions.create(**asked)


def test_tools(routed: openai.OpenAI, alone: openai.OpenAI) -> None:
    ours, theirs = both(routed, alone, tools=TOOLS)
    [call] = ours.choices[0].message.tool_calls
    assert ours.choices[0].finish_reason == "tool_calls"
    assert (call.function.name, json.loads(call.function.arguments)["days"]) == ("weather", 1)
    assert call.function.arguments == theirs.choices[0].message.tool_calls[0].function.arguments
    result = {"role": "tool", "tool_call_id": call.id, "content": "5 degrees"}
    said, _ = both(routed, alone, tools=TOOLS, messages=[*ASK, ours.choices[0].message.to_dict(), result])
    assert said.choices[0].message.content
    assert not said.choices[0].message.tool_calls


def test_streamed_tools(routed: openai.OpenAI, alone: openai.OpenAI) -> None:
    ours, theirs = both(routed, alone, tools=TOOLS, tool_choice="required", stream=True)
    arguments = []
    for stream in (ours, theirs):
        deltas = [chunk.choices[0].delta for chunk in stream]
        calls = [delta.tool_calls[0] for delta in deltas if delta.tool_calls]
        assert [call.function.name for call in calls if call.function.name] == ["weather"]
        arguments.append("".join(call.function.arguments for call in calls))
    assert arguments[0] == arguments[1]
    assert set(json.loads(arguments[0])) == {"city", "days"}


@pytest.mark.parametrize(
    "form",
    [{"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "w", "strict": True, "schema": SCHEMA}}],
    ids=["object", "schema"],
)
def test_json_mode(routed: openai.OpenAI, alone: openai.OpenAI, form: dict[str, Any]) -> None:
    ours, theirs = both(routed, alone, response_format=form)
    assert isinstance(json.loads(ours.choices[0].message.content), dict)
    assert ours.choices[0].message.content == theirs.choices[0].message.content
    assert ours.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities(routed: openai.OpenAI, alone: openai.OpenAI, stream: bool) -> None:
    shown = []
    for answer in both(routed, alone, logprobs=True, top_logprobs=3, max_tokens=5, stream=stream):
        parts = [c.choices[0].logprobs for c in answer] if stream else [answer.choices[0].logprobs]
        shown.append([item.to_dict() for part in parts if part for item in part.content])
    assert shown[0] == shown[1]
    assert [len(item["top_logprobs"]) for item in shown[0]] == [3] * 5


def test_token_ids_of_prompt_and_answer(routed: openai.OpenAI, alone: openai.OpenAI) -> None:
    ours, theirs = both(routed, alone, max_tokens=6, extra_body={"return_token_ids": True})
    assert ours.prompt_token_ids == theirs.prompt_token_ids
    assert ours.choices[0].token_ids == theirs.choices[0].token_ids
    streamed, _ = both(routed, alone, max_tokens=6, stream=True, extra_body={"return_token_ids": True})
    chunks = list(streamed)
    assert chunks[0].prompt_token_ids == ours.prompt_token_ids
    ids = [token for chunk in chunks[1:] for token in chunk.choices[0].token_ids or []]
    assert ids == ours.choices[0].token_ids


@pytest.mark.parametrize("stream", [False, True])
def test_the_usage_is_the_request_s_and_its_cached_tokens_leg_1_s(
    fleet: Fleet, routed: openai.OpenAI, stream: bool
) -> None:
    prompt = f"{stream} " + "the narwhal and the sea " * 20
    more: Any = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    usages = []
    for _ in range(2):
        answer = routed.completions.create(model="m", prompt=prompt, max_tokens=7, **more)
        usages.append(list(answer)[-1].usage if stream else answer.usage)
    assert [usage.completion_tokens for usage in usages] == [7, 7]
    assert usages[0].total_tokens == usages[0].prompt_tokens + 7
    first, second = (usage.prompt_tokens_details.cached_tokens for usage in usages)
    assert first < 16
    assert usages[1].prompt_tokens - 16 <= second <= usages[1].prompt_tokens
    eventually(lambda: fleet.router.rows("request")[-1]["prompt_tokens"] == usages[1].prompt_tokens, "its row")


def test_usage_in_every_chunk(routed: openai.OpenAI) -> None:
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(
        routed.completions.create(model="m", prompt="the sea", max_tokens=4, stream=True, stream_options=options)
    )
    assert [chunk.usage.completion_tokens for chunk in chunks] == [1, 2, 3, 4, 4]


def test_responses(fleet: Fleet, routed: openai.OpenAI, alone: openai.OpenAI) -> None:
    asked: dict[str, Any] = {
        "model": "m",
        "input": "What did the narwhal see?",
        "max_output_tokens": 8,
        "temperature": 0,
    }
    ours, theirs = routed.responses.create(**asked), alone.responses.create(**asked)
    assert ours.output_text == theirs.output_text != ""
    assert (ours.usage.output_tokens, ours.usage.input_tokens) == (8, theirs.usage.input_tokens)
    events = list(routed.responses.create(**asked, stream=True))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == ours.output_text
    assert events[-1].response.usage.output_tokens == 8
    eventually(lambda: fleet.router.rows("request")[-1]["route"] == "/v1/responses", "its row")
    row = fleet.router.rows("request")[-1]
    assert (row["completion_tokens"], row["prompt_tokens"]) == (8, ours.usage.input_tokens)
    assert (row["whole"], row["prefill_engine"], row["outcome"]) == (True, "", "served")


def test_a_response_that_calls_a_function(routed: openai.OpenAI) -> None:
    [call] = routed.responses.create(model="m", input="How cold is it?", tools=[FUNCTION]).output
    assert (call.type, call.name) == ("function_call", "weather")
    with pytest.raises(openai.BadRequestError, match="not kept"):
        routed.responses.create(model="m", input="And now?", previous_response_id="resp_1")


def test_tokens_and_back(fleet: Fleet) -> None:
    status, _, data = fleet.router.send("POST", "/tokenize", {"model": "m", "prompt": "the ünïcode sea"})
    tokens = json.loads(data)["tokens"]
    assert (status, json.loads(data)["count"]) == (200, len(tokens))
    status, _, data = fleet.router.send("POST", "/detokenize", {"model": "m", "tokens": tokens})
    assert (status, json.loads(data)) == (200, {"prompt": "the ünïcode sea"})


def test_errors_have_the_client_s_classes(fleet: Fleet, routed: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        routed.chat.completions.create(model="other", messages=ASK)
    assert (missing.value.param, missing.value.type) == ("model", "NotFoundError")
    with pytest.raises(openai.BadRequestError) as wrong:
        routed.chat.completions.create(model="m", messages=ASK, extra_body={"stream": "yes"})
    assert wrong.value.param == "stream"
    with pytest.raises(openai.BadRequestError, match="temperature"):  # the engine's own words
        routed.chat.completions.create(model="m", messages=ASK, temperature=-1, max_tokens=2)
    with pytest.raises(openai.NotFoundError, match="/v1/embeddings"):  # what no engine serves
        routed.embeddings.create(model="m", input="the sea")
    with pytest.raises(openai.NotFoundError, match="no route"):
        routed.images.generate(model="m", prompt="the sea")
    with pytest.raises(openai.APIStatusError) as large:
        routed.completions.create(model="m", prompt="x" * 70_000)
    assert large.value.status_code == 413
    assert all(engine["state"] == "live" for engine in fleet.router.state()["engines"])


def fault(fleet: Fleet, engine: str, **what: Any) -> None:
    url, data = fleet.expanded.engine(engine).url, json.dumps(what).encode()
    request = urllib.request.Request(f"{url}/simulate/faults", data, method="POST" if what else "DELETE")
    urllib.request.urlopen(request, timeout=60).close()


def test_a_stream_that_breaks_raises_in_the_client(routed: openai.OpenAI, fleet: Fleet) -> None:
    decode = next(engine for engine in fleet.router.state()["engines"] if engine["role"] == "decode")["id"]
    fault(fleet, decode, kind="cut_stream", after_tokens=5, count=1)
    declined = {"x-narwhal-continue": "off"}
    chunks = routed.completions.create(model="m", prompt="the sea", max_tokens=50, stream=True, extra_headers=declined)
    assert next(chunks).choices[0].text
    with pytest.raises(openai.APIError, match="may be sent again"):
        list(chunks)


def test_a_response_that_breaks_raises_in_the_client(routed: openai.OpenAI, fleet: Fleet) -> None:
    engines = [engine.id for engine in fleet.expanded.engines]
    for engine in engines:
        fault(fleet, engine, kind="cut_stream", after_tokens=5)
    try:
        events = routed.responses.create(model="m", input="the sea", max_output_tokens=50, stream=True)
        assert next(events).type == "response.created"
        with pytest.raises(openai.APIError, match="may be sent again"):
            list(events)
    finally:
        for engine in engines:
            fault(fleet, engine)
