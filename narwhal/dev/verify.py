"""Proving that an instance does what it is for: equal answers, whichever engines a request crosses."""

import asyncio
import json
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import uvloop

from narwhal.dev.ask import ask
from narwhal.fleet import Expanded
from narwhal.fleet.model import Tenant
from narwhal.fleet.secrets import SecretError, read_secret
from narwhal.preflight import Answer, Handovers, Json, block_tokens, canary_body, local_answer, streamed_text, text_of
from narwhal.profiling import EngineError, EngineUrl, directed_pairs, engine_urls

_TEXT = "Narwhals turn with the tide, and the split turns with the traffic. " * 6
_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    passed: bool
    detail: str = ""
    """Why it did not pass; empty when it did."""


@dataclass(frozen=True, slots=True)
class Router:
    """The router as a client sees it."""

    url: str
    key: str = field(repr=False)
    """API key; empty where none is needed."""


def verify(expanded: Expanded, router_url: str) -> list[Check]:
    """Ask every engine, move KV over every directed pair, and send a completion and a chat through the router.

    An engine's answer is compared with the first one's, a pair's with its producer's own, a routed one with the first
    engine's. Nothing is raised for what does not answer: it is a check that did not pass.
    """
    engines, model = expanded.engines, expanded.fleet.model.name
    try:
        block = block_tokens(_get(engines[0].url, "/metrics"))
    except (OSError, ValueError) as error:
        return [Check(f"{engines[0].id} answers", False, str(error))]
    checks = uvloop.run(_engines(engine_urls(expanded), model, block))
    try:
        key = _client_key(expanded.fleet.routers.tenants)
    except SecretError as error:
        return [*checks, Check("router knows its clients", False, str(error))]
    return checks + _routed(Router(router_url, key), engines[0].url, model, block)


async def _engines(urls: dict[str, EngineUrl], model: str, block: int) -> list[Check]:
    body = _body(model, block)
    asked = (local_answer(engine, body, _TIMEOUT_S) for engine in urls.values())
    local = await asyncio.gather(*asked, return_exceptions=True)
    wanted = next((answer.text for answer in local if isinstance(answer, Answer)), None)
    checks = []
    for engine, answer in zip(urls, local, strict=True):
        if isinstance(answer, BaseException) and not isinstance(answer, EngineError):
            raise answer
        text, error = (answer.text, "") if isinstance(answer, Answer) else (None, str(answer))
        checks.append(_compare(f"{engine} answers", text, wanted, error))
    pairs = [(producer.id, consumer.id) for producer, consumer in directed_pairs(list(urls.values()))]
    outcomes = await Handovers(urls, model, block, _TIMEOUT_S).run(pairs)
    for one in outcomes:
        passed = one.consumed.status in ("ok", "WARN")
        checks.append(Check(f"{one.producer} hands over to {one.consumer}", passed, "" if passed else one.why))
    return checks


def _client_key(tenants: list[Tenant]) -> str:
    """The first API key of the fleet's tenants that can be read; empty without tenants. Raises `SecretError`."""
    reason: SecretError | None = None
    for tenant in tenants:
        for reference in tenant.keys:
            try:
                return read_secret(reference, f"a key of the tenant {tenant.name!r}", os.environ)
            except SecretError as error:
                reason = reason or error
    if reason is not None:
        raise reason
    return ""


def _routed(router: Router, engine_url: str, model: str, block: int) -> list[Check]:
    body = _body(model, block)
    chat = {key: value for key, value in body.items() if key != "prompt"}
    chat["messages"] = _messages(engine_url, model, block)
    bodies = {"/v1/completions": body, "/v1/chat/completions": chat}
    return [
        _routed_check(router, engine_url, route, body, stream=stream)
        for route, body in bodies.items()
        for stream in (False, True)
    ]


def _routed_check(router: Router, engine_url: str, route: str, body: Json, *, stream: bool) -> Check:
    read = streamed_text if stream else text_of
    wanted, no_local = _try(lambda: text_of(_cached(engine_url, route, body)))
    answer, error = _try(lambda: read(_post(router.url, route, {**body, "stream": stream}, router.key)))
    return _compare(f"router {route} {'streamed' if stream else 'buffered'}", answer, wanted, error or no_local)


def _body(model: str, block: int) -> Json:
    """The same prompt for the first engine and for the router."""
    return canary_body(model, block, random.Random(0))  # noqa: S311 - a prompt, no secret


def _messages(url: str, model: str, block: int) -> list[Json]:
    """A chat whose prompt is whole blocks and one token by the engine's own count; any chat where it counts none."""
    text = _TEXT
    for _ in range(2 * block):
        messages = [{"role": "user", "content": text}]
        status, raw = ask(url, "/tokenize", {"model": model, "messages": messages})
        if status != 200 or json.loads(raw)["count"] % block == 1:
            break
        text += " a"
    return messages


def _get(url: str, path: str) -> bytes:
    status, raw = ask(url, path)
    if status != 200:
        raise ValueError(f"{path}: status {status}")
    return raw


def _post(url: str, route: str, body: Json, key: str = "") -> bytes:
    status, raw = ask(url, route, body, key=key)
    if status != 200:
        raise ValueError(f"status {status}: {raw[:200].decode(errors='replace')}")
    return raw


def _cached(url: str, route: str, body: Json) -> bytes:
    """The engine's second answer, for which it has the prompt's KV already, as a consumer of a handoff has.

    In bf16 a whole prefill runs other kernels than its last token alone, and near ties then differ.
    """
    _post(url, route, body)
    return _post(url, route, body)


def _try(work: Callable[[], str]) -> tuple[str | None, str]:
    """The answer, or None and what went wrong in one line."""
    try:
        return work(), ""
    except (OSError, ValueError, EngineError) as error:
        return None, str(error) or repr(error)


def _compare(name: str, answer: str | None, wanted: str | None, error: str) -> Check:
    if answer is None:
        return Check(name, False, error)
    if wanted is None:
        return Check(name, False, f"there is no local answer to compare with: {error}")
    if answer != wanted:
        return Check(name, False, f"answered {answer!r}, one engine alone answers {wanted!r}")
    return Check(name, True)
