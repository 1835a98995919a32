"""What a generation request asks for: parsed from its body, refused with vLLM's messages."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from narwhal.engine.simulated.forms import Form, form_of
from narwhal.engine.simulated.request import Source
from narwhal.engine.simulated.settings import Settings
from narwhal.engine.simulated.tokenizer import VOCABULARY_SIZE, encode

Body = Mapping[str, Any]
_ERROR_TYPES = {400: "BadRequestError", 404: "NotFoundError", 500: "InternalServerError", 503: "Service Unavailable"}
_MOST_CHOICES = 128
ANSWER = "<assistant>"
"""What stands before an answer in a chat's prompt."""


class ApiError(Exception):
    """An answer with an error status, in vLLM's form."""

    def __init__(self, status: int, message: str, param: str | None = None, kind: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        kind = kind or _ERROR_TYPES.get(status, "BadRequestError")
        self.body = msgspec.json.encode({"error": {"message": message, "type": kind, "param": param, "code": status}})


class EngineKilledError(Exception):
    """`do_remote_prefill` without the rest: a real engine dies of it, so this one does."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A generation request."""

    chat: bool
    prompts: tuple[list[int], ...]
    max_tokens: int
    natural_end: bool
    """The answer ends by itself: a chat that names no limit."""
    begun_tokens: int
    """Last tokens of a chat's prompt that the assistant has said already."""
    n: int
    stream: bool
    include_usage: bool
    continuous_usage: bool
    return_token_ids: bool
    logprobs: int | None
    """How many alternatives to show; None: no log-probabilities."""
    stop: tuple[str, ...]
    stop_tokens: frozenset[int]
    min_tokens: int
    seed: int
    cache_salt: str
    form: Form | None
    """What the answer must look like."""
    keep_kv: bool
    """Leg 1."""
    source: Source | None
    """Leg 2."""

    @property
    def leg(self) -> int | None:
        """1 or 2 in a handoff, else None."""
        return 1 if self.keep_kv else 2 if self.source else None


def parse_body(data: bytes, content_type: str) -> Body:
    """The JSON object of a request body. Raises `ApiError`."""
    if not content_type.lower().startswith("application/json"):
        raise ApiError(400, "Unsupported Media Type: Only 'application/json' is allowed", kind="Bad Request")
    try:
        body = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(400, f"JSON decode error: {error}", "body.1", "Bad Request") from None
    if not isinstance(body, dict):
        raise ApiError(400, "Input should be a valid dictionary", "body", "Bad Request")
    return body


def parse_source(body: Body) -> Source | None:
    """The KV that a leg 2 is to fetch. Raises `EngineKilledError`."""
    params = body.get("kv_transfer_params")
    if not isinstance(params, dict) or not params.get("do_remote_prefill"):
        return None
    try:
        return Source(
            engine_id=str(params["remote_engine_id"]),
            host=str(params["remote_host"]),
            port=int(params["remote_port"]),
            request_id=str(params["remote_request_id"]),
            blocks=tuple(int(block) for group in params["remote_block_ids"] for block in group),
            tokens=int(params.get("remote_num_tokens") or 0),
            cached_tokens=params.get("remote_prefill_cached_tokens"),
        )
    except (KeyError, TypeError, ValueError):
        raise EngineKilledError from None


def parse_ask(body: Body, *, chat: bool, settings: Settings, source: Source | None) -> Asked:
    """Read a completion's or chat completion's body. Raises `ApiError`."""
    check_model(body, settings)
    params = body.get("kv_transfer_params")
    params = params if isinstance(params, dict) else {}
    prompts = _prompts(body, params, chat=chat)
    longest = max(len(prompt) for prompt in prompts)
    _check_length(longest, settings.max_model_len)
    limit = _integer(body, "max_completion_tokens") if chat else None
    limit = limit if limit is not None else _integer(body, "max_tokens")
    if limit is not None and limit < 1:
        raise ApiError(
            400, f"max_tokens must be at least 1, got {limit}. (parameter=max_tokens, value={limit})", "max_tokens"
        )
    room = settings.max_model_len - longest
    asked_tokens = limit if limit is not None else room if chat else 16
    stream = bool(body.get("stream"))
    options = body.get("stream_options")
    if options and not stream:
        message = "Stream options can only be defined when `stream=True`. (parameter=stream_options)"
        raise ApiError(400, message, "stream_options")
    options = options if isinstance(options, dict) else {}
    n, seed = _sampling(body)
    min_tokens = _integer(body, "min_tokens") or 0
    if min_tokens > asked_tokens:
        message = f"min_tokens must be less than or equal to max_tokens={asked_tokens}, got {min_tokens}."
        raise ApiError(400, message)
    return Asked(
        chat=chat,
        prompts=prompts,
        max_tokens=min(asked_tokens, room),
        natural_end=chat and limit is None and not body.get("ignore_eos"),
        begun_tokens=_begun_tokens(prompts[0]) if chat and params.get("prompt_token_ids") else 0,
        n=n,
        stream=stream,
        include_usage=bool(options.get("include_usage")),
        continuous_usage=bool(options.get("include_usage")) and bool(options.get("continuous_usage_stats")),
        return_token_ids=bool(body.get("return_token_ids")),
        logprobs=_logprobs(body, chat=chat),
        stop=_stop(body),
        stop_tokens=frozenset(token for token in body.get("stop_token_ids") or () if isinstance(token, int)),
        min_tokens=min_tokens,
        seed=seed,
        cache_salt=str(body.get("cache_salt") or ""),
        form=form_of(body),
        keep_kv=bool(params.get("do_remote_decode")),
        source=source,
    )


def check_model(body: Body, settings: Settings) -> None:
    """Refuse a model that is not served; no model at all is fine. Raises `ApiError`."""
    model = body.get("model")
    if model is not None and model not in settings.names:
        message = f"The model `{model}` does not exist. Valid aliases: {', '.join(settings.names)}."
        raise ApiError(404, message, "model")


def render_chat(messages: object, tools: object = None) -> str:
    """The prompt of a conversation, by the simulated model's template. Raises `ApiError`."""
    if not isinstance(messages, list) or not messages:
        raise ApiError(400, "messages must be a list with at least one message", "messages")
    lines = [f"<tools>{msgspec.json.encode(tools).decode()}\n"] if tools else []
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ApiError(400, "each message needs a role", "messages")
        calls = message.get("tool_calls")
        called = msgspec.json.encode(calls).decode() if calls else ""
        lines.append(f"<{message['role']}>{_text(message.get('content'))}{called}\n")
    return "".join(lines) + ANSWER


def _begun_tokens(prompt: list[int]) -> int:
    """How many tokens of a chat's prompt stand behind the place where the answer begins."""
    mark = encode(ANSWER)
    for end in range(len(prompt), len(mark) - 1, -1):
        if prompt[end - len(mark) : end] == mark:
            return len(prompt) - end
    return 0


def _text(content: object) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _prompts(body: Body, params: Body, *, chat: bool) -> tuple[list[int], ...]:
    given = params.get("prompt_token_ids")
    if chat:
        prompts = [given] if given else [encode(render_chat(body.get("messages"), body.get("tools")))]
    else:
        prompt = body.get("prompt")
        if isinstance(prompt, str):
            prompts = [encode(prompt)]
        elif isinstance(prompt, list) and prompt and all(isinstance(part, str) for part in prompt):
            prompts = [encode(part) for part in prompt]
        elif isinstance(prompt, list) and prompt and all(isinstance(part, list) for part in prompt):
            prompts = prompt
        else:
            prompts = [prompt] if isinstance(prompt, list) else []
    if not prompts or not all(prompts):
        raise ApiError(400, "You must pass at least one prompt")
    for prompt in prompts:
        for token in prompt:
            if type(token) is not int:
                raise ApiError(400, "a prompt is a text, a list of token ids, or a list of those", "prompt")
            if not 0 <= token < VOCABULARY_SIZE:
                raise ApiError(400, f"Token id {token} is out of vocabulary")
    return tuple(prompts)


def _check_length(tokens: int, most: int) -> None:
    if tokens > most:
        raise ApiError(
            400,
            f"This model's maximum context length is {most} tokens. However, your prompt contains {tokens} input "
            "tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input "
            f"prompt. (parameter=input_tokens, value={tokens})",
            "input_tokens",
        )
    if tokens == most:
        raise ApiError(400, "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)", "max_tokens")


def _integer(body: Body, key: str) -> int | None:
    value = body.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise ApiError(400, f"{key}: Input should be a valid integer", key)
    return value


def _sampling(body: Body) -> tuple[int, int]:
    """Number of choices, and the seed; greedy ones have seed 0."""
    temperature = body.get("temperature")
    temperature = 1.0 if temperature is None else temperature
    if isinstance(temperature, bool) or not isinstance(temperature, int | float) or temperature < 0:
        shown = float(temperature) if isinstance(temperature, int | float) else temperature
        message = f"temperature must be non-negative, got {shown}. (parameter=temperature, value={shown})"
        raise ApiError(400, message, "temperature")
    n = _integer(body, "n")
    n = 1 if n is None else n
    if not 1 <= n <= _MOST_CHOICES:
        raise ApiError(400, f"n must be at least 1 and at most {_MOST_CHOICES}, got {n}.", "n")
    if n > 1 and temperature == 0:
        raise ApiError(400, f"n must be 1 when using greedy sampling, got {n}.")
    seed = _integer(body, "seed") or 0
    return n, seed % 2**62 if temperature else 0


def _stop(body: Body) -> tuple[str, ...]:
    stop = body.get("stop")
    if isinstance(stop, str):
        return (stop,) if stop else ()
    return tuple(text for text in stop or () if isinstance(text, str) and text)


def _logprobs(body: Body, *, chat: bool) -> int | None:
    if chat:
        return (_integer(body, "top_logprobs") or 0) if body.get("logprobs") else None
    return None if body.get("logprobs") in (None, False) else int(body["logprobs"])
