"""What clients may ask for: the routes that engines serve, and the fields that each lets through to them."""

import msgspec

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
RESPONSES, EMBEDDINGS = "/v1/responses", "/v1/embeddings"
TOKENIZE, DETOKENIZE = "/tokenize", "/detokenize"

_SAMPLING = frozenset(
    [
        "model", "user", "stream", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids",
        "ignore_eos", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias",
        "skip_special_tokens", "include_stop_str_in_output", "structured_outputs", "vllm_xargs",
    ]
)  # fmt: skip
_COMMON = _SAMPLING | {
    "stream_options", "max_tokens", "min_tokens", "n", "length_penalty", "logprobs", "prompt_logprobs",
    "spaces_between_special_tokens", "truncate_prompt_tokens", "truncation_side", "add_special_tokens",
    "return_token_ids", "return_tokens_as_token_ids", "bad_words", "allowed_token_ids", "response_format",
    "use_beam_search", "best_of", "detokenize", "repetition_detection", "thinking_token_budget",
}  # fmt: skip
_TEMPLATE = {"add_generation_prompt", "continue_final_message", "chat_template_kwargs", "mm_processor_kwargs"}


class Route(msgspec.Struct, frozen=True):
    """One route that engines serve."""

    fields: frozenset[str]
    """Fields that go to an engine; others are dropped, as vLLM itself ignores what it does not know."""
    prompts: tuple[str, ...]
    """Where the prompt may stand: the first of these that is there."""
    limits: tuple[str, ...] = ()
    """Fields that limit the answer; the first that is set counts."""
    default_max_tokens: int = 1
    splits: bool = False
    """Served in two legs where the request allows it; else it goes whole to one engine."""
    light: bool = False
    """Costs an engine nothing worth planning for: no model runs."""


ROUTES = {
    COMPLETIONS: Route(
        frozenset(_COMMON | {"prompt", "echo", "suffix"}), ("prompt",), ("max_tokens",), 16, splits=True
    ),
    CHAT: Route(
        frozenset(
            _COMMON
            | _TEMPLATE
            | {
                "messages", "max_completion_tokens", "top_logprobs", "tools", "tool_choice", "parallel_tool_calls",
                "reasoning_effort", "include_reasoning", "documents",
            }
        ),
        ("messages",), ("max_completion_tokens", "max_tokens"), 4096, splits=True,
    ),
    RESPONSES: Route(
        frozenset(
            _SAMPLING
            | {
                "input", "instructions", "max_output_tokens", "max_tool_calls", "metadata", "parallel_tool_calls",
                "reasoning", "include", "include_reasoning", "text", "tool_choice", "tools", "top_logprobs",
                "truncation", "chat_template_kwargs", "mm_processor_kwargs",
            }
        ),
        ("input",), ("max_output_tokens",), 4096,
    ),
    EMBEDDINGS: Route(
        frozenset(
            _TEMPLATE
            | {
                "model", "user", "input", "messages", "encoding_format", "dimensions", "truncate_prompt_tokens",
                "truncation_side", "add_special_tokens", "padding", "use_activation", "embed_dtype", "endianness",
            }
        ),
        ("input", "messages"),
    ),
    TOKENIZE: Route(
        frozenset(_TEMPLATE | {"model", "prompt", "messages", "tools", "add_special_tokens", "return_token_strs"}),
        ("prompt", "messages"), light=True,
    ),
    DETOKENIZE: Route(frozenset(["model", "tokens"]), ("tokens",), light=True),
}  # fmt: skip

FORBIDDEN = {
    "kv_transfer_params": "names engines and KV blocks; only the router may say it",
    "ec_transfer_params": "names engines and caches; only the router may say it",
    "prompt_embeds": "embeddings as prompts are not served",
    "chat_template": "a client's own chat template is code that would run in the engine",
}
"""Fields that are refused, and why."""
FORBIDDEN_ARGUMENTS = FORBIDDEN | {"tokenize": "changes what the template's renderer returns to the engine"}
"""Keys that are refused in `vllm_xargs` and `chat_template_kwargs`, and why."""
STATEFUL = {
    "previous_response_id": "answers are not kept; send the whole conversation as `input`",
    "conversation": "conversations are not kept; send the whole conversation as `input`",
    "background": "answers are not kept; ask with `stream` and stay connected",
    "prompt": "prompt templates are not kept; send the text as `input`",
}
"""Fields of `/v1/responses` that are refused unless null or false, and why: engines keep nothing between requests."""
ENCODINGS = ("float", "base64")
"""Forms of an embedding that are JSON."""
LEAD_FRAMES = 4
"""Events of a streamed `/v1/responses` before its first token: created, in progress, item added, part added."""
