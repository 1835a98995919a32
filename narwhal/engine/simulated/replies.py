"""The JSON of answers: whole ones, and the chunks of streams."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import msgspec

from narwhal.engine.simulated.sampling import logprob_of
from narwhal.engine.simulated.tokenizer import WORD_TOKENS, decode

json_encode = msgspec.json.Encoder().encode
DONE = b"data: [DONE]\n\n"
STREAM_ERROR = (
    b'data: {"error": {"message": "Internal server error", "type": "InternalServerError", "param": null, '
    b'"code": 500}}\n\n'
)
FINGERPRINT = "vllm-0.32.0-simulated"

Logprob = tuple[int, bytes]
"""A chosen token and the state that chose it."""


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int | None = None) -> dict[str, Any]:
    """The usage of a stream's chunk; with `cached_tokens` where the engine is to tell them."""
    used: dict[str, Any] = {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
    }
    if cached_tokens is not None:
        used["prompt_tokens_details"] = {"cached_tokens": cached_tokens}
    return used


def event(data: Mapping[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json_encode(data) + b"\n\n"


def completion_logprobs(items: Sequence[Logprob], top: int, offset: int) -> dict[str, Any]:
    """Log-probabilities as a completion shows them; `offset` is the length of the text before."""
    texts = [decode([token]) for token, _ in items]
    return {
        "text_offset": list(accumulate(map(len, texts[:-1]), initial=offset)),
        "token_logprobs": [logprob_of(state) for _, state in items],
        "tokens": texts,
        "top_logprobs": [dict(_alternatives(token, state, max(top, 1))) for token, state in items],
    }


def chat_logprobs(items: Sequence[Logprob], top: int) -> dict[str, Any]:
    """Log-probabilities as a chat completion shows them."""
    return {
        "content": [
            {
                **_shown(decode([token]), logprob_of(state)),
                "top_logprobs": [_shown(text, logprob) for text, logprob in _alternatives(token, state, top)],
            }
            for token, state in items
        ]
    }


def whole_completion(head: Mapping[str, Any], choices: list[Any], used: Mapping[str, Any], kv: object) -> bytes:
    """A completion that is not streamed."""
    return json_encode(
        {
            **head,
            "object": "text_completion",
            "choices": choices,
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": {"prompt_tokens_details": None, "completion_tokens_details": None, **used},
            "kv_transfer_params": kv,
            "ec_transfer_params": None,
            "metrics": None,
        }
    )


def whole_chat(
    head: Mapping[str, Any], choices: list[Any], used: Mapping[str, Any], kv: object, prompt: Sequence[int] | None
) -> bytes:
    """A chat completion that is not streamed."""
    return json_encode(
        {
            **head,
            "object": "chat.completion",
            "choices": choices,
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": {"prompt_tokens_details": None, "completion_tokens_details": None, **used},
            "prompt_logprobs": None,
            "prompt_token_ids": prompt,
            "prompt_text": None,
            "kv_transfer_params": kv,
            "ec_transfer_params": None,
            "metrics": None,
        }
    )


def _shown(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


def _alternatives(token: int, state: bytes, count: int) -> Iterable[tuple[str, float]]:
    """The chosen token and `count - 1` invented others, each less likely than the one before."""
    logprob = logprob_of(state)
    start = WORD_TOKENS.index(token) if token in WORD_TOKENS else 0
    others = (WORD_TOKENS[start + 1 :] + WORD_TOKENS[:start])[: max(count - 1, 0)]
    for rank, candidate in enumerate([token, *others][:count]):
        yield decode([candidate]), round(logprob - 0.7 * rank, 4)
