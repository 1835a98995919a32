"""Proving that an instance does what it is for: equal answers, whichever engines a request crosses."""

import json
import random
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import permutations
from typing import Any

from narwhal.dev.ask import ask
from narwhal.fleet import EngineSpec, Expanded

Json = dict[str, Any]
_TOKENS = 12
_BLOCKS = 3
_TEXT = "Narwhals turn with the tide, and the split turns with the traffic. " * 6
_FIRST_ID, _LAST_ID = 100, 1900
"""Token ids of the prompt: above special ids, below the vocabulary of the smallest model tested against."""
_AT_A_TIME = 4
_PRODUCE = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
"""What leg 1 says so that its engine keeps the KV for another."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    passed: bool
    detail: str = ""
    """Why it did not pass; empty when it did."""


def verify(expanded: Expanded, router_url: str) -> list[Check]:
    """Ask every engine, move KV over every directed pair, and send a completion and a chat through the router.

    An engine's answer is compared with the first one's, a pair's with its producer's own, a routed one with the first
    engine's. Each pair has a prompt of its own, so its consumer has none of it cached. Nothing is raised for what does
    not answer: it is a check that did not pass.
    """
    engines, model = expanded.engines, expanded.fleet.model.name
    try:
        block = _block_tokens(engines[0].url)
    except (OSError, ValueError) as error:
        return [Check(f"{engines[0].id} answers", False, str(error))]
    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        body = _body(model, block, 0)
        local = list(pool.map(lambda engine: _try(lambda: _local(engine, body)), engines))
        wanted = next((answer for answer, _ in local if answer is not None), None)
        checks = [
            _compare(f"{engine.id} answers", answer, wanted, error)
            for engine, (answer, error) in zip(engines, local, strict=True)
        ]
        pairs = enumerate(permutations(engines, 2), 1)
        checks += pool.map(lambda pair: _pair_check(pair[1][0], pair[1][1], _body(model, block, pair[0])), pairs)
    return checks + _routed(router_url, engines[0].url, model, block)


def _pair_check(producer: EngineSpec, consumer: EngineSpec, body: Json) -> Check:
    answer, error = _try(lambda: _two_legs(producer, consumer, body))
    wanted, no_local = _try(lambda: _local(producer, body))
    return _compare(f"{producer.id} hands over to {consumer.id}", answer, wanted, error or no_local)


def _routed(router_url: str, engine_url: str, model: str, block: int) -> list[Check]:
    body = _body(model, block, 0)
    chat = {key: value for key, value in body.items() if key != "prompt"}
    chat["messages"] = _messages(engine_url, model, block)
    bodies = {"/v1/completions": body, "/v1/chat/completions": chat}
    return [
        _routed_check(router_url, engine_url, route, body, stream=stream)
        for route, body in bodies.items()
        for stream in (False, True)
    ]


def _routed_check(router_url: str, engine_url: str, route: str, body: Json, *, stream: bool) -> Check:
    read = _streamed_text if stream else _text
    wanted, no_local = _try(lambda: _text(_cached(engine_url, route, body)))
    answer, error = _try(lambda: read(_post(router_url, route, {**body, "stream": stream})))
    return _compare(f"router {route} {'streamed' if stream else 'buffered'}", answer, wanted, error or no_local)


def _local(engine: EngineSpec, body: Json) -> str:
    return _text(_cached(engine.url, "/v1/completions", body))


def _two_legs(producer: EngineSpec, consumer: EngineSpec, body: Json) -> str:
    """The answer of `consumer` from KV that `producer` computed, through the engines' own HTTP."""
    first = {**body, "max_tokens": 1, "kv_transfer_params": _PRODUCE}
    handoff = json.loads(_post(producer.url, "/v1/completions", first)).get("kv_transfer_params")
    if not isinstance(handoff, dict):
        raise ValueError("leg 1 answered without kv_transfer_params")
    return _text(_post(consumer.url, "/v1/completions", {**body, "kv_transfer_params": handoff}))


def _body(model: str, block: int, number: int) -> Json:
    """A prompt of whole blocks and one token.

    An engine that has the blocks cached and one that has pulled them then compute the same one token. With another
    rest they compute steps of different shapes, and in bf16 near ties between tokens fall differently.
    """
    draw = random.Random(number)  # noqa: S311 - a prompt, no secret
    prompt = [draw.randint(_FIRST_ID, _LAST_ID) for _ in range(_BLOCKS * block + 1)]
    return {"model": model, "prompt": prompt, "max_tokens": _TOKENS, "temperature": 0, "ignore_eos": True}


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


def _block_tokens(url: str) -> int:
    """Tokens of a KV block, from the engine's metrics."""
    status, page = ask(url, "/metrics")
    found = re.search(rb'block_size="(\d+)"', page)
    if status != 200 or found is None:
        raise ValueError(f"/metrics tells no block size (status {status})")
    return int(found[1])


def _post(url: str, route: str, body: Json) -> bytes:
    status, raw = ask(url, route, body)
    if status != 200:
        raise ValueError(f"status {status}: {raw[:200].decode(errors='replace')}")
    return raw


def _cached(url: str, route: str, body: Json) -> bytes:
    """The engine's second answer, for which it has the prompt's KV already, as a consumer of a handoff has.

    In bf16 a whole prefill runs other kernels than its last token alone, and near ties then differ.
    """
    _post(url, route, body)
    return _post(url, route, body)


def _text(raw: bytes) -> str:
    choice = json.loads(raw)["choices"][0]
    return str(choice["message"]["content"] if "message" in choice else choice["text"])


def _streamed_text(raw: bytes) -> str:
    text = ""
    events = [event for event in raw.decode().split("\n\n") if event.startswith("data: ")]
    if not events or events[-1] != "data: [DONE]":
        raise ValueError("the stream did not end with [DONE]")
    for event in events[:-1]:
        chunk = json.loads(event.removeprefix("data: "))
        if "error" in chunk:
            raise ValueError(str(chunk["error"].get("message", chunk["error"])))
        for choice in chunk["choices"]:
            text += choice["delta"].get("content") or "" if "delta" in choice else choice["text"]
    return text


def _try(work: Callable[[], str]) -> tuple[str | None, str]:
    """The answer, or None and what went wrong in one line."""
    try:
        return work(), ""
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        return None, str(error) or repr(error)


def _compare(name: str, answer: str | None, wanted: str | None, error: str) -> Check:
    if answer is None:
        return Check(name, False, error)
    if wanted is None:
        return Check(name, False, f"there is no local answer to compare with: {error}")
    if answer != wanted:
        return Check(name, False, f"answered {answer!r}, one engine alone answers {wanted!r}")
    return Check(name, True)
