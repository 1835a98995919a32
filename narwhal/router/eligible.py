"""Which streams may go on on another engine: those whose rest follows from their prompt and their tokens alone."""

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw

from narwhal.engine.dialect import Body
from narwhal.fleet.model import Fleet
from narwhal.router.routes import CHAT, COMPLETIONS

_decode = msgspec.json.Decoder().decode
Rule = Callable[[Any, Body], bool]


def _only(*values: object) -> Rule:
    """Harmless with these values, and where it is null."""
    return lambda value, body: value is None or value in values


def _off(value: Any, body: Body) -> bool:
    """False, not 0: that many alternatives are an answer with log-probabilities."""
    return value is None or value is False


def _greedy(value: Any, body: Body) -> bool:
    """A seed counts the draws from the beginning, so it cannot be taken up again; without sampling nothing is drawn."""
    temperature = _decode(body["temperature"]) if "temperature" in body else None
    return value is None or (temperature is not None and temperature == 0)


def _unused_tools(value: Any, body: Body) -> bool:
    """Tools that are not to be called leave the answer as it is."""
    return not value or ("tool_choice" in body and _decode(body["tool_choice"]) == "none")


def _free_text(value: Any, body: Body) -> bool:
    return value is None or (isinstance(value, dict) and value.get("type") == "text")


def _usage_at_the_end(value: Any, body: Body) -> bool:
    return not (isinstance(value, dict) and value.get("continuous_usage_stats"))


_never = _only()
HARMLESS: dict[str, Rule] = {
    "seed": _greedy,
    # what depends on the tokens of the answer itself, which would be tokens of the prompt
    "presence_penalty": _only(0),
    "frequency_penalty": _only(0),
    "repetition_penalty": _only(1),
    "bad_words": _only([]),
    "repetition_detection": _never,
    "thinking_token_budget": _never,
    "vllm_xargs": _never,
    # what is kept by the engine that reads the answer, from its beginning on
    "stop": _only("", []),
    "structured_outputs": _never,
    "response_format": _free_text,
    "tools": _unused_tools,
    # what tells about more than the text of one answer
    "logprobs": _off,
    "top_logprobs": _only(0),
    "prompt_logprobs": _never,
    "echo": _off,
    "n": _only(1),
    "best_of": _only(1),
    "use_beam_search": _off,
    "stream_options": _usage_at_the_end,
    "detokenize": _only(True),
    "suffix": _never,
    # what would be done to the longer prompt once more
    "truncate_prompt_tokens": _never,
    "mm_processor_kwargs": _never,
}
"""Fields because of which a stream may not go on elsewhere, and whether it may with this value."""
_LOOKED_AT = frozenset(HARMLESS)


def hindrance(route: str, body: Body, *, stream: bool, whole: bool) -> str:
    """Why a request's stream cannot go on on another engine: `route`, or the name of a field; empty when it can.

    Media in messages are looked for when it comes to that (`has_media`).
    """
    if not stream or whole or route not in (COMPLETIONS, CHAT):
        return "route"
    if _LOOKED_AT.isdisjoint(body):
        return ""
    found = sorted(_LOOKED_AT.intersection(body))
    return next((name for name in found if not HARMLESS[name](_decode(body[name]), body)), "")


def resumable_routes(fleet: Fleet) -> frozenset[str]:
    """Routes whose streams may go on elsewhere; not chats where engines part reasoning from the answer."""
    if not fleet.serving.continuation.enabled:
        return frozenset()
    engines = fleet.engines
    args = [engines.args, *(override.args for override in engines.overrides.values())]
    parses = any("reasoning-parser" in some for some in args)
    return frozenset([COMPLETIONS] if parses else [COMPLETIONS, CHAT])


def has_media(messages: Raw) -> bool:
    """Whether a chat holds anything but text: engines ignore a prompt of ids beside media."""
    for message in _decode(messages):
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list) and not all(
            isinstance(part, dict) and part.get("type", "text") == "text" for part in content
        ):
            return True
    return False
