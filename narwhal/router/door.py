"""What may come in: a client's body, parsed once, checked, and cut down to the fields that engines are given.

A body is decoded to `dict[str, Raw]`; prompts and messages are never decoded as a whole, only looked at.
"""

import re
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Raw

from narwhal.control import PRIORITIES
from narwhal.fleet.model import Priority
from narwhal.router.routes import (
    CHAT,
    EMBEDDINGS,
    ENCODINGS,
    FORBIDDEN,
    FORBIDDEN_ARGUMENTS,
    LEAD_FRAMES,
    RESPONSES,
    ROUTES,
    STATEFUL,
    Route,
)

Body = dict[str, Raw]

MAX_TOKENS = 2**31 - 1
"""What larger limits count as; engines cut them to their own."""
_LIST, _TEXT = b'["'
_TRUE, _FALSE, _NULL = b"true", b"false", b"null"


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
    role_frames: int
    """Events at the start of its stream that hold no token: a chat names the role of each choice first."""
    forwarded: bytes = b""
    """Header lines that go to an engine with it, each with its CRLF."""
    priority: Priority | None = None
    """What it asks for among its tenant's; None: nothing."""
    resumable: bool = False
    """Whether its stream may go on on another engine."""


_ONE_ENGINE = frozenset(["best_of", "echo", "use_beam_search", "prompt_logprobs"])
"""Fields that may keep a request from being split."""
_RARE = frozenset([*FORBIDDEN, "vllm_xargs", "chat_template_kwargs"])
"""Fields that are looked at closely, wherever they are allowed."""
_quoted = lru_cache(16)(msgspec.json.encode)
_decode = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_any = msgspec.json.Decoder().decode
_decode_ids = msgspec.json.Decoder(list[int]).decode


def parse(route: str, raw: bytes, model: str, media_hosts: frozenset[str]) -> Parsed:
    """Parse and check a body. Raises `RefusedError` with what is wrong and which field."""
    try:
        body = _decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RefusedError(400, f"the body is not a JSON object: {error}", kind="Bad Request") from None
    if not _RARE.isdisjoint(body):
        _check_forbidden(body)
    _check_model(body, model)
    spec = ROUTES[route]
    if route == RESPONSES:
        _check_stateless(body)
    priority: Priority | None = None
    if not spec.fields.issuperset(body):
        priority = _priority(body)
        body = {name: value for name, value in body.items() if name in spec.fields}
    prompt = _prompt(spec, body)
    _check_media(prompt, media_hosts)
    if route == RESPONSES:
        body["store"] = Raw(_FALSE)  # what is kept could not be asked for again
    elif route == EMBEDDINGS and _set(body, "encoding_format") and _value(body, "encoding_format") not in ENCODINGS:
        raise RefusedError(400, f"`encoding_format` must be one of {', '.join(ENCODINGS)}", param="encoding_format")
    stream = _flag(body, "stream")
    limit = _limit(body, spec)
    prompt_bytes, prompt_tokens, several = (0, 1, False) if spec.light else _measure(prompt)
    choices = _number(body, "n")
    whole = not spec.splits or several or choices > 1 or (not _ONE_ENGINE.isdisjoint(body) and _asks_one_engine(body))
    include_usage = _includes_usage(body, stream)
    lead = choices if route == CHAT else LEAD_FRAMES if route == RESPONSES else 0
    return Parsed(route, body, stream, include_usage, limit, whole, prompt_bytes, prompt_tokens, lead, b"", priority)


def _priority(body: Body) -> Priority | None:
    """The class that a body asks for by name. A number is vLLM's `priority`, which is not served."""
    value = _value(body, "priority") if _set(body, "priority") else None
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return None
    if value not in PRIORITIES:
        raise RefusedError(400, f"`priority` must be one of {', '.join(PRIORITIES)}", param="priority")
    return PRIORITIES[PRIORITIES.index(value)]


def asks_token_ids(parsed: Parsed) -> bool:
    """Whether the client itself asks for the ids of its tokens."""
    return "return_token_ids" in parsed.body and bytes(parsed.body["return_token_ids"]) == _TRUE


def _check_forbidden(body: Body) -> None:
    """Refuse what only the router may say, at the top and in the objects that pass further arguments on."""
    for name, why in FORBIDDEN.items():
        if name in body and bytes(body[name]) != _NULL:
            raise RefusedError(400, f"`{name}` {why}", param=name)
    for outer in ("vllm_xargs", "chat_template_kwargs"):
        value = _value(body, outer) if outer in body else None
        if not isinstance(value, dict):
            continue
        for name, why in FORBIDDEN_ARGUMENTS.items():
            if name in value:
                raise RefusedError(400, f"`{outer}.{name}` {why}", param=outer)


def _asks_one_engine(body: Body) -> bool:
    return (
        _number(body, "best_of") > 1
        or _flag(body, "echo")
        or _flag(body, "use_beam_search")
        or _set(body, "prompt_logprobs")
    )


def _check_model(body: Body, model: str) -> None:
    if "model" not in body or bytes(body["model"]) == _quoted(model):
        return
    name = _value(body, "model")
    if name is not None and name != model:
        message = f"The model `{name}` does not exist. Valid aliases: {model}."
        raise RefusedError(404, message, param="model", kind="NotFoundError")


def _check_stateless(body: Body) -> None:
    """Refuse what needs an engine that keeps something between requests, or reaches out for a client."""
    for name, why in STATEFUL.items():
        if name in body and bytes(body[name]) not in (_NULL, _FALSE):
            raise RefusedError(400, f"`{name}` is not served: {why}", param=name)
    tools = _value(body, "tools") if "tools" in body else None
    if isinstance(tools, list) and any(isinstance(tool, dict) and tool.get("type") == "mcp" for tool in tools):
        raise RefusedError(
            400, "tools of type `mcp` are not served: an engine would call a client's server", param="tools"
        )


def _prompt(spec: Route, body: Body) -> bytes:
    name, prompt = "", _NULL
    for other in spec.prompts:
        value = bytes(body[other]) if other in body else _NULL
        if value != _NULL and name:
            message = f"`{name}` and `{other}` are given; only one of them can be the prompt"
            raise RefusedError(400, message, param=name)
        if value != _NULL:
            name, prompt = other, value
    if not name:
        raise RefusedError(400, f"`{spec.prompts[0]}` is missing", param=spec.prompts[0])
    text = name in ("prompt", "input")
    if prompt[0] != _LIST and not (text and prompt[0] == _TEXT):
        raise RefusedError(400, f"`{name}` must be a list{' or text' if text else ''}", param=name)
    return prompt


def _check_media(messages: bytes, hosts: frozenset[str]) -> None:
    """Refuse media that the engine would fetch from hosts that are not listed, and embeddings in place of media."""
    if messages[0] != _LIST or not any(mark in messages for mark in (b"_url", b"_embeds", b"\\u")):
        return  # an escape may spell either
    for key, value in _media(_parsed(messages, "messages")):
        if key.endswith("_embeds"):
            raise RefusedError(400, f"`{key}`: embeddings are not served", param="messages")
        url = value.get("url") if isinstance(value, dict) else value
        if not isinstance(url, str) or url.startswith("data:"):
            continue
        match = _MEDIA_URL.match(url)
        if match is None or match.group(1).lower() not in hosts:
            where = f"host `{match.group(1)}`" if match else "this form of URL"
            raise RefusedError(400, f"media of {where} are not fetched (serving.media_hosts)", param="messages")


_MEDIA_URL = re.compile(r"https?://([A-Za-z0-9.-]+)(?::\d{1,5})?(?:[/?#][^\\\s]*)?\Z")
"""Nothing that two parsers could read as two hosts: no user, no backslash, no white space."""


def _media(value: Any) -> list[tuple[str, Any]]:
    """Every key that ends in `_url` or `_embeds`, wherever it stands, with its value."""
    found: list[tuple[str, Any]] = []
    unseen = [value]  # a stack of our own: a client chooses how deep it nests
    while unseen:
        value = unseen.pop()
        if isinstance(value, list):
            unseen += value
        elif isinstance(value, dict):
            for key, item in value.items():
                if key.endswith(("_url", "_embeds")):
                    found.append((key, item))
                else:
                    unseen.append(item)
    return found


def _measure(prompt: bytes) -> tuple[int, int, bool]:
    """(bytes, tokens, several): a prompt of ids is counted, text is measured, a list of prompts is several."""
    if prompt[0] != _LIST:
        return len(prompt), 0, False
    rest = prompt[1:].lstrip()
    if rest.startswith((b'"', b"[")):
        return len(prompt), 0, len(_parsed(prompt, "prompt")) > 1
    if rest.startswith(b"{"):
        return len(prompt), 0, False
    try:
        return 0, len(_decode_ids(prompt)), False
    except msgspec.DecodeError:
        raise RefusedError(400, "`prompt` is neither text nor token ids", param="prompt") from None


def _limit(body: Body, spec: Route) -> int:
    for name in spec.limits:
        if name in body and (limit := _number(body, name, 0)):
            return limit if limit < MAX_TOKENS else MAX_TOKENS
    return spec.default_max_tokens


def _includes_usage(body: Body, stream: bool) -> bool:
    if "stream_options" not in body:
        return False
    options = _value(body, "stream_options") if _set(body, "stream_options") else None
    if options is not None and not stream:  # leg 1 drops them, so only leg 2 would say it
        raise RefusedError(400, "`stream_options` are for `stream: true`", param="stream_options")
    return isinstance(options, dict) and options.get("include_usage") is True


def _flag(body: Body, name: str) -> bool:
    """A flag, strictly: what vLLM would read as true must not be false here."""
    if name not in body:
        return False
    value = bytes(body[name])
    if value not in (_TRUE, _FALSE, _NULL):
        raise RefusedError(400, f"`{name}` must be true or false", param=name)
    return value == _TRUE


def _set(body: Body, name: str) -> bool:
    return name in body and bytes(body[name]) != _NULL


def _number(body: Body, name: str, default: int = 1) -> int:
    """A number of at least 1, strictly, for the same reason; the default when it is not given."""
    if name not in body:
        return default
    raw = bytes(body[name])
    if raw.isdigit() and raw != b"0":  # the common case, without a decoder
        return int(raw)
    if raw == _NULL:
        return default
    value = _parsed(raw, name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise RefusedError(400, f"`{name}` must be a whole number of at least 1", param=name)
    return value


def _value(body: Body, name: str) -> Any:
    return _parsed(bytes(body[name]), name)


def _parsed(raw: bytes, name: str) -> Any:
    try:
        return _decode_any(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RefusedError(400, f"`{name}` cannot be read: {error}", param=name, kind="Bad Request") from None
