"""Going on with a stream: what is read of the old, asked of the new, and told of it."""

import itertools
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narwhal.engine.dialect import VllmDialect
from narwhal.router.chunks import ChunkTracker, dechunk
from narwhal.router.continuation import (
    Opening,
    Rest,
    Tail,
    fits,
    last_events,
    read_opening,
    read_tail,
    rest_body,
    rest_limit,
)
from narwhal.router.routes import CHAT, COMPLETIONS
from tests.router.harness import event

TEXTS = st.one_of(
    st.text(max_size=6), st.sampled_from(['"created":1', '"id":"x"', "\n\n", "data: [DONE]", '"usage":{'])
)


def documents(tokens: list[tuple[str, list[int]]], *, chat: bool, name: str, created: int) -> list[dict[str, Any]]:
    """The events of a stream as vLLM sends them, with its usage."""
    head = {"id": name, "object": "x", "created": created, "model": 'a "model"'}
    events: list[dict[str, Any]] = []
    if chat:
        role = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        events.append({**head, "choices": [role], "prompt_token_ids": [7, 8]})
    for place, (text, ids) in enumerate(tokens):
        said: dict[str, Any] = {"delta": {"content": text}} if chat else {"text": text}
        reason = "length" if place == len(tokens) - 1 else None
        choice = {"index": 0, **said, "finish_reason": reason, "token_ids": ids}
        if not chat:
            choice["prompt_token_ids"] = None if place else [7, 8]
        events.append({**head, "choices": [choice]})
    count = sum(len(ids) for _, ids in tokens)
    usage = {"prompt_tokens": 5, "total_tokens": 5 + count, "completion_tokens": count}
    return [*events, {**head, "choices": [], "usage": usage}]


def read(body: bytes) -> list[Any]:
    texts = [text.removeprefix("data: ") for text in body.decode().split("\n\n") if text]
    return [text if text == "[DONE]" else json.loads(text) for text in texts]


@settings(deadline=None)
@given(
    st.lists(st.tuples(TEXTS, st.lists(st.integers(0, 9999), max_size=3)), min_size=1, max_size=6),
    st.booleans(),
    st.booleans(),
    st.lists(st.integers(0, 1 << 16), max_size=20),
)
def test_the_rest_bears_the_name_of_the_first_whatever_the_reads(
    tokens: list[tuple[str, list[int]]], chat: bool, chunked: bool, cuts: list[int]
) -> None:
    old = documents([("a", [1])], chat=chat, name="first", created=111)
    opening = read_opening(b"".join(map(event, old[: 1 + chat])))
    assert opening is not None
    assert (opening.prompt_ids, opening.prompt_tokens) == (b"7, 8" if b"7, 8" in event(old[0]) else b"7,8", 2)
    new = documents(tokens, chat=chat, name="second", created=222)
    body = b"".join(map(event, new)) + event("[DONE]") + b"0\r\n\r\n"
    rest, tracker, out = Rest(opening, int(chat), 2, 3, chunked=chunked), ChunkTracker(), b""
    places = sorted({0, len(body), *(cut % (len(body) + 1) for cut in cuts)})
    for start, end in itertools.pairwise(places):
        whole = tracker.feed(body[start:end])
        out += rest.feed(whole) if whole else b""
    if chunked:
        assert out.endswith(b"0\r\n\r\n")
        assert ChunkTracker().feed(out) == out
        out = dechunk(out)
    told = read(out)
    assert told[-1] == "[DONE]"
    expected = [{**document, "id": "first", "created": 111} for document in new[int(chat) :]]
    for document in expected:
        for choice in document["choices"]:
            if "prompt_token_ids" in choice:
                choice["prompt_token_ids"] = None
    count = 3 + new[-1]["usage"]["completion_tokens"]
    expected[-1]["usage"] = {"prompt_tokens": 2, "total_tokens": 2 + count, "completion_tokens": count}
    assert told[:-1] == expected


def test_an_opening_that_cannot_be_gone_on_from() -> None:
    first = documents([("a", [1])], chat=False, name="n", created=1)[0]
    assert read_opening(event(first)) is not None
    thinking = {**first, "choices": [{**first["choices"][0], "reasoning_content": "hm"}]}
    for document in (
        {**first, "choices": [{**first["choices"][0], "prompt_token_ids": None}]},
        {key: value for key, value in first.items() if key != "created"},
        thinking,
    ):
        assert read_opening(event(document)) is None


def test_the_tail_of_a_stream() -> None:
    sent = documents([("a", [1]), ("", [2]), ("é", [3, 4])], chat=True, name="n", created=1)
    framed = [event(document) for document in sent]
    assert read_tail(b"".join(framed[:3])) == Tail("a", 2, finished=False, counted=False)
    assert read_tail(b"".join(framed[:4])) == Tail("aé", 4, finished=True, counted=False)
    assert read_tail(b"".join(framed)) == Tail("aé", 4, finished=True, counted=True)
    assert read_tail(b"".join(framed[1:4])[9:]) == Tail("é", 3, finished=True, counted=False)


@pytest.mark.parametrize(
    "event",
    [
        b"{1:2}",
        b'{"choices":7}',
        b'{"choices":[7]}',
        b'{"choices":[{"delta":"x"}]}',
        b'{"choices":[{"text":7}]}',
        b'{"choices":[{"token_ids":["x"]}]}',
        b'{"choices":[{"finish_reason":{}}]}',
        b'{"choices":' + b"[" * 5000 + b"]" * 5000 + b"}",
    ],
)
def test_the_tail_of_a_stream_of_garbage_is_none(event: bytes) -> None:
    assert read_tail(b"data: %s\n\n" % event) is None


@settings(max_examples=300)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_no_usage_of_an_engine_ends_the_rest_of_a_stream(usage: object) -> None:
    rest = Rest(Opening(b'"id":"a"', b'"created":1', b'"model":"m"', b"1,2"), 0, 2, 3, chunked=False)
    event = b'data: {"id":"b","usage":{"completion_tokens":' + json.dumps(usage).encode() + b"}}\n\n"
    assert rest.feed(b"%x\r\n%s\r\n" % (len(event), event)).startswith(b'data: {"id":"a"')


@pytest.mark.parametrize(
    ("text", "told", "whole", "fit"),
    [
        ("the sea", " the sea", True, True),
        ("the sea", "the se", True, False),
        ("the se", "the sea", True, False),
        ("the sea", " sea", False, True),
        ("the sea\ufffd", " sea", False, False),
        ("the se", " sea", False, False),
        ("", "", True, True),
    ],
)
def test_ids_end_where_the_text_does(text: str, told: str, whole: bool, fit: bool) -> None:
    assert fits(text, Tail(told, 3, finished=False, counted=False), 3 if whole else 9) is fit


def body(**fields: Any) -> dict[str, msgspec.Raw]:
    return {name: msgspec.Raw(json.dumps(value).encode()) for name, value in fields.items()}


@pytest.mark.parametrize(
    ("route", "fields", "most", "limit"),
    [
        (COMPLETIONS, {}, 16, ("max_tokens", 11)),
        (COMPLETIONS, {"max_tokens": 100}, 100, ("max_tokens", 45)),
        (CHAT, {}, 4096, ("", 45)),
        (CHAT, {"max_tokens": None}, 4096, ("", 45)),
        (CHAT, {"max_tokens": 20}, 20, ("max_tokens", 15)),
        (CHAT, {"max_tokens": 99, "max_completion_tokens": 20}, 20, ("max_completion_tokens", 15)),
    ],
)
def test_what_is_left_of_the_limit(route: str, fields: dict[str, Any], most: int, limit: tuple[str, int]) -> None:
    assert rest_limit(route, body(**fields), most, 50, 5) == limit


def test_the_body_of_the_rest() -> None:
    asked = body(prompt="hello", max_tokens=20, min_tokens=8, add_special_tokens=True, temperature=0.5, stream=True)
    found = rest_body(COMPLETIONS, asked, b"7,8,1,2", ("max_tokens", 18), 2)
    read_back = {name: json.loads(bytes(value)) for name, value in found.items()}
    assert read_back == {"prompt": [7, 8, 1, 2], "max_tokens": 18, "min_tokens": 6, "temperature": 0.5, "stream": True}
    assert "min_tokens" not in rest_body(COMPLETIONS, asked, b"7,8,1", ("max_tokens", 18), 8)


def test_a_chat_s_ids_travel_in_both_legs_and_alone() -> None:
    asked = body(messages=[{"role": "user", "content": "hi"}], stream=True, max_tokens=9, max_completion_tokens=9)
    rest = rest_body(CHAT, asked, b"7,8,1", ("max_completion_tokens", 8), 1)
    dialect = VllmDialect()
    leg_1, leg_2 = json.loads(dialect.leg1(rest)), json.loads(dialect.leg2(rest, msgspec.Raw(b'{"remote_port":5}')))
    assert leg_1["kv_transfer_params"]["prompt_token_ids"] == [7, 8, 1]
    assert leg_1["kv_transfer_params"]["do_remote_decode"] is True
    assert leg_1["max_completion_tokens"] == 1
    assert leg_2["kv_transfer_params"] == {"prompt_token_ids": [7, 8, 1], "remote_port": 5}
    assert leg_2["max_completion_tokens"] == 8
    assert "max_tokens" not in leg_2
    whole = json.loads(dialect.whole(rest, token_ids=True))
    assert whole["kv_transfer_params"] == {"prompt_token_ids": [7, 8, 1]}
    assert whole["return_token_ids"] is True


@pytest.mark.parametrize("chat", [False, True])
def test_the_last_events_look_like_the_engine_s(chat: bool) -> None:
    sent = documents([("a", [1])], chat=chat, name="n", created=5)
    opening = read_opening(b"".join(map(event, sent)))
    assert opening is not None
    usage, done = read(last_events(opening, CHAT if chat else COMPLETIONS, (5, 1)))
    kind = "chat.completion.chunk" if chat else "text_completion"
    assert (usage, done) == ({**sent[-1], "object": kind}, "[DONE]")
    assert read(last_events(opening, CHAT, None)) == ["[DONE]"]
