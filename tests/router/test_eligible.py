"""Which streams may go on elsewhere, by what they ask for."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from narwhal.fleet import open_fleet
from narwhal.router.eligible import HARMLESS, has_media, hindrance, resumable_routes
from narwhal.router.routes import CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES, ROUTES
from tests.router.harness import write_fleet


def body(**fields: Any) -> dict[str, msgspec.Raw]:
    return {name: msgspec.Raw(json.dumps(value).encode()) for name, value in fields.items()}


def why(route: str = CHAT, *, stream: bool = True, whole: bool = False, **fields: Any) -> str:
    return hindrance(route, body(**fields), stream=stream, whole=whole)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "logit_bias": {"5": 1}, "min_tokens": 3},
        {"seed": 7, "temperature": 0},
        {"seed": None, "stop": None, "tools": None},
        {"stop": [], "stop_token_ids": [3], "ignore_eos": True, "skip_special_tokens": False},
        {"presence_penalty": 0, "frequency_penalty": 0.0, "repetition_penalty": 1.0, "n": 1, "logprobs": False},
        {"stream_options": {"include_usage": True}, "return_token_ids": True},
        {"tools": [{"type": "function"}], "tool_choice": "none"},
        {"response_format": {"type": "text"}, "bad_words": []},
    ],
)
def test_what_goes_on(fields: dict[str, Any]) -> None:
    assert why(**fields) == ""
    assert why(COMPLETIONS, **fields) == ""


HINDERS: dict[str, Any] = {
    "seed": 7,
    "presence_penalty": 0.1,
    "frequency_penalty": -1,
    "repetition_penalty": 1.1,
    "bad_words": ["sea"],
    "repetition_detection": {"max_pattern_size": 3},
    "thinking_token_budget": 10,
    "vllm_xargs": {"a": 1},
    "stop": ["\n"],
    "structured_outputs": {"json": {}},
    "response_format": {"type": "json_object"},
    "tools": [{"type": "function"}],
    "logprobs": True,
    "top_logprobs": 2,
    "prompt_logprobs": 0,
    "echo": True,
    "n": 2,
    "best_of": 2,
    "use_beam_search": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    "detokenize": False,
    "suffix": "end",
    "truncate_prompt_tokens": 100,
    "mm_processor_kwargs": {"a": 1},
}


def test_every_rule_is_tried() -> None:
    assert set(HINDERS) == set(HARMLESS)


@pytest.mark.parametrize("name", HINDERS)
def test_what_does_not(name: str) -> None:
    assert why(**{name: HINDERS[name]}) == name
    assert why(**{"stop": [], "temperature": 1, "n": 1, name: HINDERS[name]}) == name


def test_a_seed_hinders_whenever_something_is_drawn() -> None:
    assert why(seed=1, temperature=0.1) == why(seed=1, temperature=None) == why(seed=0) == "seed"


@pytest.mark.parametrize("route", [RESPONSES, EMBEDDINGS])
def test_other_routes_and_whole_answers_do_not(route: str) -> None:
    assert why(route) == why(stream=False) == why(whole=True) == "route"


def test_fields_of_routes_are_known() -> None:
    assert set(HARMLESS) <= ROUTES[CHAT].fields | ROUTES[COMPLETIONS].fields


@pytest.mark.parametrize(
    ("messages", "found"),
    [
        ([{"role": "user", "content": "a"}], False),
        ([{"role": "user", "content": [{"type": "text", "text": "a"}]}, {"role": "assistant", "content": None}], False),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}], True),
        ([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "input_audio"}]}], True),
    ],
)
def test_media(messages: Any, found: bool) -> None:
    assert has_media(msgspec.Raw(json.dumps(messages).encode())) is found


def test_routes_by_fleet(tmp_path: Path) -> None:
    def routes(**options: Any) -> frozenset[str]:
        return resumable_routes(open_fleet(write_fleet(tmp_path, [], count=2, **options)[0]).fleet)

    assert routes() == {CHAT, COMPLETIONS}
    assert routes(engine_more="\n  args: {reasoning-parser: qwen3}") == {COMPLETIONS}
    assert routes(serving="continuation: {enabled: false}") == frozenset()


def test_log_probabilities_of_a_completion_hinder_even_at_0() -> None:
    assert why(COMPLETIONS, logprobs=0) == "logprobs"
