"""What is let in, what is refused, and what an engine is given of it."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narwhal.router.door import Parsed, RefusedError, parse
from narwhal.router.routes import CHAT, COMPLETIONS, DETOKENIZE, EMBEDDINGS, RESPONSES, ROUTES, STATEFUL, TOKENIZE

HOSTS = frozenset(["images.example.org"])


def let_in(route: str = COMPLETIONS, **body: Any) -> Parsed:
    name = ROUTES[route].prompts[0]
    if not any(name in body for name in ROUTES[route].prompts):
        body[name] = [_USER] if name == "messages" else [1, 2] if name == "tokens" else "hello"
    return parse(route, json.dumps(body).encode(), "m", HOSTS)


def refused(route: str = COMPLETIONS, **body: Any) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        let_in(route, **body)
    return caught.value


_USER = {"role": "user", "content": "hello"}


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("field", ["kv_transfer_params", "ec_transfer_params", "prompt_embeds", "chat_template"])
def test_what_only_the_router_may_say_is_refused(route: str, field: str) -> None:
    error = refused(route, **{field: {"do_remote_prefill": True}})
    assert (error.status, error.param) == (400, field)
    assert let_in(route, **{field: None}).body.keys().isdisjoint({field})


@pytest.mark.parametrize("field", ["kv_transfer_params", "ec_transfer_params"])
def test_nor_may_it_be_said_among_further_arguments(field: str) -> None:
    error = refused(vllm_xargs={field: {}})
    assert (error.status, error.param) == (400, "vllm_xargs")
    assert field in error.message


def test_a_chat_template_may_not_come_in_by_its_arguments() -> None:
    assert refused(CHAT, chat_template_kwargs={"chat_template": "{{ 1 }}"}).status == 400
    assert "chat_template_kwargs" in let_in(CHAT, chat_template_kwargs={"enable_thinking": False}).body


def test_an_escaped_name_is_the_same_name() -> None:
    raw = rb'{"prompt": "a", "kv_transfer\u005fparams": {}}'
    with pytest.raises(RefusedError):
        parse(COMPLETIONS, raw, "m", HOSTS)


def test_unknown_fields_and_priorities_do_not_reach_an_engine() -> None:
    body = let_in(temperature=0.5, priority=-9, request_id="x", cache_salt="y", invented=1).body
    assert set(body) == {"prompt", "temperature"}


def test_another_model_is_not_found_as_vllm_says_it() -> None:
    error = refused(model="nope")
    assert (error.status, error.kind, error.param) == (404, "NotFoundError", "model")
    assert error.message == "The model `nope` does not exist. Valid aliases: m."
    assert let_in(model="m").body
    assert "model" not in let_in().body


@pytest.mark.parametrize(
    "url",
    [
        "http://evil.example/x.png",
        "https://images.example.org@evil.example/x.png",
        "https://evil.example\\@images.example.org/x.png",
        "file:///etc/passwd",
        "ftp://images.example.org/x.png",
        "//images.example.org/x.png",
        "https://images.example.org.evil.example/",
        "https://images.example.org /x",
    ],
)
def test_media_of_hosts_that_are_not_listed_are_refused(url: str) -> None:
    part = {"type": "image_url", "image_url": {"url": url}}
    assert refused(CHAT, messages=[{"role": "user", "content": [part]}]).param == "messages"


def test_an_escaped_media_key_is_the_same_key() -> None:
    part = rb'{"type": "image\u005furl", "image\u005furl": {"url": "http://evil.example/x"}}'
    raw = b'{"messages": [{"role": "user", "content": [%s]}]}' % part
    with pytest.raises(RefusedError):
        parse(CHAT, raw, "m", HOSTS)


@pytest.mark.parametrize("depth", [100, 600, 900])
def test_media_are_found_and_refused_however_deep_they_lie(depth: int) -> None:
    part = b"[" * depth + b'{"image_url": {"url": "http://evil.example/x"}}' + b"]" * depth
    with pytest.raises(RefusedError) as caught:
        parse(CHAT, b'{"messages": [{"role": "user", "content": %s}]}' % part, "m", HOSTS)
    assert caught.value.status == 400


@pytest.mark.parametrize("url", ["https://images.example.org/x.png", "data:image/png;base64,AAAA"])
def test_listed_hosts_and_inline_media_are_let_in(url: str) -> None:
    part = {"type": "image_url", "image_url": {"url": url}}
    assert let_in(CHAT, messages=[{"role": "user", "content": [part]}]).body


@pytest.mark.parametrize(
    "body",
    [
        {"n": 2},
        {"best_of": 3},
        {"echo": True},
        {"use_beam_search": True},
        {"prompt": ["a", "b"]},
        {"prompt": [[1, 2], [3]]},
        {"prompt_logprobs": 1},
    ],
)
def test_what_cannot_be_split_stays_whole(body: dict[str, Any]) -> None:
    assert let_in(**body).whole


@pytest.mark.parametrize("body", [{}, {"n": 1}, {"prompt": ["a"]}, {"prompt": [[1, 2]]}, {"echo": False}, {"n": None}])
def test_one_prompt_with_one_choice_is_split(body: dict[str, Any]) -> None:
    assert not let_in(**body).whole


@pytest.mark.parametrize("field", ["stream", "echo", "use_beam_search"])
@pytest.mark.parametrize("value", ["true", 1, "on"])
def test_what_vllm_would_read_as_true_is_not_taken_for_false(field: str, value: object) -> None:
    assert refused(**{field: value}).param == field


@pytest.mark.parametrize("field", ["n", "best_of", "max_tokens"])
@pytest.mark.parametrize("value", ["2", 2.0, True, 0, -1])
def test_nor_are_numbers_taken_for_other_numbers(field: str, value: object) -> None:
    assert refused(**{field: value}).param == field


def test_token_ids_are_counted_and_text_is_measured() -> None:
    assert (let_in(prompt=[1, 2, 3]).prompt_tokens, let_in(prompt=[1, 2, 3]).prompt_bytes) == (3, 0)
    assert (let_in(prompt="abcd").prompt_tokens, let_in(prompt="abcd").prompt_bytes) == (0, 6)


def test_the_limit_is_the_one_that_vllm_takes() -> None:
    assert let_in().max_tokens == 16
    assert let_in(max_tokens=5).max_tokens == 5
    assert let_in(CHAT, max_tokens=5, max_completion_tokens=7).max_tokens == 7
    assert let_in(max_tokens=10**30).max_tokens <= 2**31


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{bad}",
        b"[]",
        b'"a"',
        b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"prompt": "a", "stop": NaN}',
        b"{}",
        b'{"prompt": [1, "a"]}',
        b'{"prompt": "a", "model": {"x": [}}',
    ],
)
def test_bad_bodies_are_refused_in_one_way(raw: bytes) -> None:
    with pytest.raises(RefusedError) as caught:
        parse(COMPLETIONS, raw, "m", HOSTS)
    assert caught.value.status == 400


# What is passed whole to one engine

PASSED = [RESPONSES, EMBEDDINGS, TOKENIZE, DETOKENIZE]


@pytest.mark.parametrize("route", PASSED)
def test_the_other_routes_are_not_split(route: str) -> None:
    assert let_in(route).whole


@pytest.mark.parametrize("field", STATEFUL)
def test_a_response_that_needs_a_former_one_is_refused(field: str) -> None:
    assert refused(RESPONSES, input="hello", **{field: "x"}).param == field
    assert set(let_in(RESPONSES, input="hello", **{field: False}).body) == {"input", "store"}


def test_no_response_is_kept_and_no_tool_reaches_out() -> None:
    assert bytes(let_in(RESPONSES, store=True).body["store"]) == b"false"
    assert refused(RESPONSES, tools=[{"type": "mcp", "server_url": "http://evil.example"}]).param == "tools"
    assert let_in(RESPONSES, tools=[{"type": "function", "name": "f", "parameters": {}}]).body["tools"]


def test_what_a_passed_request_will_cost_is_known() -> None:
    assert let_in(RESPONSES, max_output_tokens=7).max_tokens == 7
    assert (let_in(EMBEDDINGS, input=[1, 2, 3]).prompt_tokens, let_in(EMBEDDINGS).max_tokens) == (3, 1)
    assert let_in(EMBEDDINGS, input=["a", "b"]).prompt_bytes == 10
    for route in (TOKENIZE, DETOKENIZE):
        assert (let_in(route).prompt_tokens, let_in(route).prompt_bytes, let_in(route).max_tokens) == (1, 0, 1)


@pytest.mark.parametrize(("route", "names"), [(EMBEDDINGS, ("input", "messages")), (TOKENIZE, ("prompt", "messages"))])
def test_a_prompt_stands_in_one_place(route: str, names: tuple[str, str]) -> None:
    """Or else media might be looked for in one and fetched from the other."""
    assert refused(route, **{name: [_USER] for name in names}).status == 400
    assert refused(route, **{names[0]: None}).param == names[0]


@pytest.mark.parametrize(
    "part",
    [{"type": "input_image", "image_url": "http://evil.example/x"}, {"type": "input_file", "file_url": "file:///x"}],
)
def test_media_of_a_response_are_looked_at_too(part: dict[str, str]) -> None:
    assert refused(RESPONSES, input=[{"role": "user", "content": [part]}]).status == 400


def test_embeddings_are_json() -> None:
    assert let_in(EMBEDDINGS, encoding_format="base64").body
    assert refused(EMBEDDINGS, encoding_format="bytes").param == "encoding_format"


_PLAIN = st.one_of(st.none(), st.booleans(), st.integers(-5, 2**70), st.floats(), st.text(max_size=5))
_JSON = st.one_of(
    _PLAIN, st.lists(_PLAIN, max_size=2), st.dictionaries(st.sampled_from(["url", "a"]), _PLAIN, max_size=2)
)
_NAMES = st.sampled_from(
    sorted(frozenset().union(*(route.fields for route in ROUTES.values())) | {"kv_transfer_params", *STATEFUL})
)


def outcome_of(route: str, raw: bytes) -> Parsed | int:
    """What was let in, or the status it was refused with; any other exception is the test's failure."""
    try:
        return parse(route, raw, "m", HOSTS)
    except RefusedError as error:
        return error.status


@settings(deadline=None)
@given(st.sampled_from(list(ROUTES)), st.dictionaries(_NAMES, _JSON, max_size=6))
def test_any_object_is_let_in_or_refused(route: str, body: dict[str, Any]) -> None:
    outcome = outcome_of(route, json.dumps(body).encode())
    if isinstance(outcome, Parsed):
        assert set(outcome.body) <= ROUTES[route].fields | {"store"}
        assert outcome.max_tokens >= 1
    else:
        assert outcome in (400, 404)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(list(ROUTES)), st.binary(max_size=60))
def test_any_bytes_are_let_in_or_refused(route: str, raw: bytes) -> None:
    outcome = outcome_of(route, raw)
    assert isinstance(outcome, Parsed) or outcome in (400, 404)
