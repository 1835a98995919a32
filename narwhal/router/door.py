"""What may come in: a client's body, parsed once, checked, and cut down to the fields that engines are given.

A body is decoded to `dict[str, Raw]`; prompts and messages are never decoded as a whole, only looked at.
"""

from typing import Any

import msgspec
from msgspec import Raw

Body = dict[str, Raw]

_COMMON = frozenset(
    [
        "model",
        "stream",
        "stream_options",
        "max_tokens",
        "min_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "n",
        "seed",
        "stop",
        "stop_token_ids",
        "ignore_eos",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "length_penalty",
        "logit_bias",
        "logprobs",
        "prompt_logprobs",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "include_stop_str_in_output",
        "truncate_prompt_tokens",
        "add_special_tokens",
        "return_token_ids",
        "bad_words",
        "allowed_token_ids",
        "response_format",
        "structured_outputs",
        "user",
        "use_beam_search",
        "best_of",
        "vllm_xargs",
        "detokenize",
    ]
)
FIELDS = {
    "/v1/completions": _COMMON | {"prompt", "echo", "suffix"},
    "/v1/chat/completions": _COMMON
    | {
        "messages", "max_completion_tokens", "top_logprobs", "tools", "tool_choice", "parallel_tool_calls",
        "reasoning_effort", "include_reasoning", "add_generation_prompt", "continue_final_message", "documents",
        "mm_processor_kwargs", "chat_template_kwargs",
    },
}  # fmt: skip
"""Fields that go to an engine, by route; others are dropped, as vLLM itself ignores what it does not know."""

FORBIDDEN = {
    "kv_transfer_params": "names engines and KV blocks; only the router may say it",
    "ec_transfer_params": "names engines and caches; only the router may say it",
    "prompt_embeds": "embeddings as prompts are not served",
    "chat_template": "a client's own chat template is code that would run in the engine",
}
"""Fields that are refused, and why."""

DEFAULT_MAX_TOKENS = {"/v1/completions": 16, "/v1/chat/completions": 4096}
_TRUE, _NULL = b"true", b"null"


class RefusedError(Exception):
    """A request that is not let in: an HTTP status and the parts of an OpenAI error."""

    def __init__(self, status: int, message: str, *, param: str | None = None, kind: str = "BadRequestError") -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.kind = status, message, param, kind


class Parsed(msgspec.Struct):
    """A request that may go to an engine."""

    route: str
    body: Body
    stream: bool
    include_usage: bool
    max_tokens: int
    whole: bool
    """It cannot be split over two legs."""
    prompt_bytes: int
    """Size of the prompt as JSON; 0 when `prompt_tokens` is exact."""
    prompt_tokens: int
    """Length of a prompt that came as token ids; 0: to be estimated from `prompt_bytes`."""


_decode = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_any = msgspec.json.Decoder().decode
_decode_ids = msgspec.json.Decoder(list[int]).decode


def parse(route: str, raw: bytes, model: str, media_hosts: frozenset[str]) -> Parsed:
    """Parse and check a body. Raises `RefusedError` with what is wrong and which field."""
    try:
        body = _decode(raw)
    except msgspec.DecodeError as error:
        raise RefusedError(400, f"the body is not a JSON object: {error}", kind="Bad Request") from None
    for name, why in FORBIDDEN.items():
        if name in body and bytes(body[name]) != _NULL:
            raise RefusedError(400, f"`{name}` {why}", param=name)
    _check_extra_arguments(body)
    _check_model(body, model)
    fields = FIELDS[route]
    body = {name: value for name, value in body.items() if name in fields}
    prompt = _prompt(route, body)
    if route == "/v1/chat/completions":
        _check_media(prompt, media_hosts)
    stream = _flag(body, "stream")
    limit = _limit(body, route)
    prompt_bytes, prompt_tokens, several = _measure(prompt)
    whole = several or _number(body, "n") > 1 or _number(body, "best_of") > 1
    whole = whole or _flag(body, "echo") or _flag(body, "use_beam_search") or _set(body, "prompt_logprobs")
    return Parsed(route, body, stream, stream and _includes_usage(body), limit, whole, prompt_bytes, prompt_tokens)


def _check_extra_arguments(body: Body) -> None:
    extra = body.get("vllm_xargs")
    if extra is None:
        return
    value = _value(body, "vllm_xargs")
    for name in FORBIDDEN:
        if isinstance(value, dict) and name in value:
            raise RefusedError(400, f"`vllm_xargs.{name}` {FORBIDDEN[name]}", param="vllm_xargs")


def _check_model(body: Body, model: str) -> None:
    if "model" not in body:
        return
    name = _value(body, "model")
    if name is not None and name != model:
        message = f"The model `{name}` does not exist. Valid aliases: {model}."
        raise RefusedError(404, message, param="model", kind="NotFoundError")


def _prompt(route: str, body: Body) -> bytes:
    name = "prompt" if route == "/v1/completions" else "messages"
    if name not in body:
        raise RefusedError(400, f"`{name}` is missing", param=name)
    return bytes(body[name]).strip()


def _check_media(messages: bytes, hosts: frozenset[str]) -> None:
    """Refuse media URLs of hosts that are not listed: the engine would fetch them."""
    if b"_url" not in messages:
        return
    for url in _urls(_decode_any(messages)):
        scheme, _, rest = url.partition(":")
        if scheme == "data":
            continue
        host = rest.lstrip("/").partition("/")[0].rpartition("@")[2].partition(":")[0].lower()
        if scheme not in ("http", "https") or host not in hosts:
            raise RefusedError(
                400, f"media of host `{host or scheme}` are not fetched (serving.media_hosts)", param="messages"
            )


def _urls(value: Any) -> list[str]:
    """All URLs of `*_url` parts, wherever they stand."""
    if isinstance(value, list):
        return [url for item in value for url in _urls(item)]
    if not isinstance(value, dict):
        return []
    found: list[str] = []
    for key, item in value.items():
        if key.endswith("_url"):
            target = item.get("url") if isinstance(item, dict) else item
            found += [target] if isinstance(target, str) else []
        else:
            found += _urls(item)
    return found


def _measure(prompt: bytes) -> tuple[int, int, bool]:
    """(bytes, tokens, several): a prompt of ids is counted, text is measured, a list of prompts is several."""
    if not prompt.startswith(b"["):
        return len(prompt), 0, False
    rest = prompt[1:].lstrip()
    if rest.startswith(b'"'):
        return len(prompt), 0, len(_decode_any(prompt)) > 1
    if rest.startswith(b"["):
        return len(prompt), 0, len(_decode_any(prompt)) > 1
    if rest.startswith(b"{"):
        return len(prompt), 0, False
    try:
        return 0, len(_decode_ids(prompt)), False
    except msgspec.DecodeError:
        raise RefusedError(400, "`prompt` is neither text nor token ids", param="prompt") from None


def _limit(body: Body, route: str) -> int:
    for name in ("max_completion_tokens", "max_tokens"):
        if name in body and bytes(body[name]) != _NULL:
            value = _value(body, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise RefusedError(400, f"`{name}` must be a whole number of at least 1", param=name)
            return value
    return DEFAULT_MAX_TOKENS[route]


def _includes_usage(body: Body) -> bool:
    options = _value(body, "stream_options") if "stream_options" in body else None
    return isinstance(options, dict) and options.get("include_usage") is True


def _flag(body: Body, name: str) -> bool:
    return name in body and bytes(body[name]) == _TRUE


def _set(body: Body, name: str) -> bool:
    return name in body and bytes(body[name]) != _NULL


def _number(body: Body, name: str) -> int:
    value = _value(body, name) if name in body else 1
    return value if isinstance(value, int) else 1


def _value(body: Body, name: str) -> Any:
    try:
        return _decode_any(body[name])
    except msgspec.DecodeError as error:
        raise RefusedError(400, f"`{name}` is not valid JSON: {error}", param=name, kind="Bad Request") from None
