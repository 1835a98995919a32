"""What is particular to one kind of inference server: bodies of the two legs, answers, metric names.

The router knows engines only through `Dialect`. Bodies are `dict[str, Raw]`: values that are only passed on are
never decoded.
"""

import re
from typing import Protocol

import msgspec
from msgspec import Raw

Body = dict[str, Raw]

GENERATION_NAME, LAUNCH_NAME = "narwhal.gen.", "narwhal.launch."
"""How the model names begin that `narwhal engine run` adds: they tell a process's generation and launch record."""


class Leg1Answer(msgspec.Struct, frozen=True):
    """What leg 1 tells: the handoff, to be passed on unchanged, and the true length of the prompt."""

    handoff: Raw
    prompt_tokens: int
    generation: str


class _Model(msgspec.Struct):
    id: str = ""


class _Models(msgspec.Struct):
    data: list[_Model] = []


class EngineMetrics(msgspec.Struct, frozen=True):
    """What an engine's metrics say of its load."""

    running: int
    waiting: int
    kv_used_tokens: int
    started_at: str
    """`process_start_time_seconds`, as printed: names the process generation."""
    tokens: int = -1
    """Tokens generated since the start; -1: not told."""
    intervals: int = 0
    """Decode intervals measured since the start."""
    intervals_s: float = 0.0
    """Their sum, in seconds."""
    late_notifications: int = -1
    """Notifications about KV that was freed already, since the start; -1: not told."""


class Dialect(Protocol):
    """One kind of inference server."""

    def leg1(self, body: Body) -> bytes:
        """Body of leg 1 for a client's body: prefill only, never streamed."""

    def leg1_answer(self, answer: bytes) -> Leg1Answer | None:
        """Parse leg 1's answer; None when it names no handoff."""

    def leg2(self, body: Body, handoff: Raw, *, token_ids: bool = False) -> bytes:
        """Body of leg 2; `token_ids`: have the ids of its tokens told in the answer."""

    def whole(self, body: Body, *, token_ids: bool = False) -> bytes:
        """Body for one engine that serves both phases; `token_ids` as in `leg2`."""

    def metrics(self, text: str) -> EngineMetrics | None:
        """Parse the engine's metrics page; None when it is not one."""

    def generation(self, models: bytes) -> str:
        """The generation that `/v1/models` tells; empty when it tells none."""

    def model_names(self, models: bytes) -> list[str]:
        """The models that `/v1/models` tells."""


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0


class _Params(msgspec.Struct):
    remote_engine_id: str | None = None
    do_remote_prefill: bool = False


class _Leg1(msgspec.Struct):
    kv_transfer_params: Raw = Raw(b"null")
    usage: _Usage | None = None


ERROR_EVENT = b'data: {"error"'
"""How an engine reports a failure inside a stream, after its 200; inside JSON text the quotes would be escaped."""

_ONE, _FALSE, _TRUE = Raw(b"1"), Raw(b"false"), Raw(b"true")
_ASK_FOR_HANDOFF = Raw(
    b'{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,'
    b'"remote_block_ids":null,"remote_host":null,"remote_port":null}'
)
_NOT_IN_LEG1 = frozenset((
    "stream_options", "min_tokens", "logprobs", "top_logprobs", "prompt_logprobs", "return_token_ids",
    "return_tokens_as_token_ids", "structured_outputs", "thinking_token_budget", "repetition_detection",
))  # fmt: skip
"""Fields that a one-token prefill must not carry (`min_tokens` above 1 is a 400) or that only cost work there."""


def _with_prompt(params: Raw, body: Body) -> Raw:
    """KV transfer parameters, with the ids that stand for the prompt where the body brings some (`{"…": […]}`).

    Only the router writes them there: a chat that goes on cannot be rendered from its messages.
    """
    own = body.get("kv_transfer_params")
    return params if own is None else Raw(b"%s,%s" % (bytes(own)[:-1], bytes(params)[1:]))


class VllmDialect:
    """vLLM with NixlConnector, as observed on 0.26 and 0.32 (`docs/adr`, engine contract tests)."""

    def __init__(self) -> None:
        self._encode = msgspec.json.Encoder().encode
        self._decode_leg1 = msgspec.json.Decoder(_Leg1).decode
        self._decode_models = msgspec.json.Decoder(_Models).decode
        self._decode_params = msgspec.json.Decoder(_Params).decode

    def leg1(self, body: Body) -> bytes:
        """Body of leg 1: one token, not streamed (a streamed answer carries no handoff), with the request for one."""
        leg = dict(body)
        if not _NOT_IN_LEG1.isdisjoint(body):
            for name in _NOT_IN_LEG1:
                leg.pop(name, None)
        leg["stream"] = _FALSE
        leg["max_tokens"] = _ONE
        if "max_completion_tokens" in leg:
            leg["max_completion_tokens"] = _ONE
        leg["kv_transfer_params"] = _with_prompt(_ASK_FOR_HANDOFF, body)
        return self._encode(leg)

    def leg1_answer(self, answer: bytes) -> Leg1Answer | None:
        """The handoff of leg 1's answer, passed on unchanged."""
        try:
            parsed = self._decode_leg1(answer)
            params = self._decode_params(parsed.kv_transfer_params)
        except msgspec.DecodeError:
            return None
        if not params.do_remote_prefill:
            return None
        tokens = parsed.usage.prompt_tokens if parsed.usage else 0
        return Leg1Answer(parsed.kv_transfer_params, tokens, params.remote_engine_id or "")

    def leg2(self, body: Body, handoff: Raw, *, token_ids: bool = False) -> bytes:
        """Body of leg 2: the client's, with leg 1's handoff."""
        leg = {**body, "kv_transfer_params": _with_prompt(handoff, body)}
        if token_ids:
            leg["return_token_ids"] = _TRUE
        return self._encode(leg)

    def whole(self, body: Body, *, token_ids: bool = False) -> bytes:
        """The client's body."""
        return self._encode({**body, "return_token_ids": _TRUE} if token_ids else body)

    def metrics(self, text: str) -> EngineMetrics | None:
        """Running and waiting requests, KV in use, and the process's start, from a vLLM metrics page."""
        values = dict(_METRIC.findall(text))
        if "vllm:num_requests_running" not in values:
            return None
        size = _CACHE_SIZE.search(text)
        capacity = int(size.group(1)) if size else 0
        try:
            return EngineMetrics(
                running=int(float(values["vllm:num_requests_running"])),
                waiting=int(float(values.get("vllm:num_requests_waiting", 0))),
                kv_used_tokens=round(float(values.get("vllm:kv_cache_usage_perc", 0.0)) * capacity),
                started_at=values.get("process_start_time_seconds", ""),
                tokens=int(float(values.get("vllm:generation_tokens_total", -1))),
                intervals=int(float(values.get("vllm:inter_token_latency_seconds_count", 0))),
                intervals_s=float(values.get("vllm:inter_token_latency_seconds_sum", 0.0)),
                late_notifications=int(float(values.get("vllm:nixl_num_notifications_after_expiry_total", -1))),
            )
        except (ValueError, OverflowError):  # NaN, or a page that is cut
            return None

    def generation(self, models: bytes) -> str:
        """The UUID that `narwhal engine run` has the engine serve as a model name."""
        names = self.model_names(models)
        return next((name.removeprefix(GENERATION_NAME) for name in names if name.startswith(GENERATION_NAME)), "")

    def model_names(self, models: bytes) -> list[str]:
        """All that it lists, the names that `narwhal engine run` adds included; none for what is no such list."""
        try:
            return [model.id for model in self._decode_models(models).data]
        except msgspec.DecodeError:
            return []


_METRIC = re.compile(
    r"^(vllm:num_requests_running|vllm:num_requests_waiting|vllm:kv_cache_usage_perc|process_start_time_seconds"
    r"|vllm:generation_tokens_total|vllm:inter_token_latency_seconds_(?:sum|count)"
    r"|vllm:nixl_num_notifications_after_expiry_total)"
    r"(?:\{[^}]*\})? (\S+)$",
    re.MULTILINE,
)
_CACHE_SIZE = re.compile(r'kv_cache_size_tokens="(\d+)"')
