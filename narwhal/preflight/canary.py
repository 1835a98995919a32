"""The canary: a prompt that no engine has seen, and what engines answer to it."""

import json
import random
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from narwhal.engine.dialect import VllmDialect
from narwhal.profiling import EngineError, EngineUrl, ask

Json = dict[str, Any]
ROUTE = "/v1/completions"
TOKENS = 12
NEAR_TIE = 0.25
"""Difference of log-probability between first and second choice below which rounding may decide: four steps of a bf16
logit between 8 and 16."""
_FIRST_ID, _LAST_ID = 100, 1900
"""Token ids of the prompt: above special ids, below the vocabulary of the smallest model tested against."""
_BLOCK = re.compile(rb'block_size="(\d+)"')
_PULLED = re.compile(rb'^vllm:prompt_tokens_by_source_total\{[^}]*source="external_kv_transfer"[^}]*\} (\S+)$', re.M)
_SECONDS = re.compile(rb"^vllm:nixl_xfer_time_seconds_sum(?:\{[^}]*\})? (\S+)$", re.M)
_BYTES = re.compile(rb"^vllm:nixl_bytes_transferred_sum(?:\{[^}]*\})? (\S+)$", re.M)


class LegError(EngineError):
    """A leg that failed."""

    def __init__(self, leg: int, error: EngineError) -> None:
        super().__init__(str(error), error.cause, error.status)
        self.leg = leg


@dataclass(frozen=True, slots=True)
class Handoff:
    """One prompt that was prefilled by one engine and answered by another."""

    answer: str
    leg1_s: float
    first_token_s: float
    """From sending leg 2 to its first token."""
    transport: str = ""
    """How KV moves, as leg 1's answer says it; empty: not told."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What an engine answers alone, and how sure it was."""

    text: str
    gaps: tuple[tuple[int, float], ...] = ()
    """For each token: where it begins in the text, and how much log-probability lies between its first and second
    choice. Empty: the engine tells no log-probabilities."""

    def is_near_tie(self, other: str) -> bool:
        """Whether another answer parts from this one at a token that rounding may decide."""
        pairs = zip(self.text, other, strict=False)
        parts_at = next((at for at, (mine, its) in enumerate(pairs) if mine != its), min(len(self.text), len(other)))
        gap = next((gap for start, gap in reversed(self.gaps) if start <= parts_at), None)
        return gap is not None and gap < NEAR_TIE


@dataclass(frozen=True, slots=True)
class Moved:
    """What an engine has counted as pulled from peers since it started; None where it does not count."""

    tokens: int | None
    bytes: int | None
    seconds: float | None = None
    """Time of its transfers alone."""

    def since(self, before: "Moved") -> "Moved":
        """What was pulled since `before`."""
        spent = None if self.seconds is None else self.seconds - (before.seconds or 0.0)
        return Moved(_rise(before.tokens, self.tokens), _rise(before.bytes, self.bytes), spent)


def canary_body(model: str, block_tokens: int, draw: random.Random, blocks: int = 3) -> Json:
    """A body with a prompt of whole blocks and one token, answered greedily.

    An engine that has the blocks cached and one that has pulled them then compute the same one token. With another
    rest they compute steps of different shapes, and in bf16 near ties between tokens fall differently.
    """
    prompt = prompt_of(blocks * block_tokens + 1, draw)
    return {"model": model, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}


def prompt_of(tokens: int, draw: random.Random) -> list[int]:
    """A prompt of random token ids."""
    return [draw.randint(_FIRST_ID, _LAST_ID) for _ in range(tokens)]


def block_tokens(page: bytes) -> int:
    """Tokens of a KV block, from an engine's metrics. Raises `ValueError`."""
    found = _BLOCK.search(page)
    if found is None:
        raise ValueError("/metrics tells no block size")
    return int(found[1])


async def local_answer(engine: EngineUrl, body: Json, timeout_s: float) -> Answer:
    """An engine's second answer, for which it has the prompt's KV already, as a consumer of a handoff has.

    In bf16 a whole prefill runs other kernels than its last token alone, and near ties then differ. Raises
    `EngineError`.
    """
    await ask(engine, ROUTE, body, timeout_s=timeout_s)
    raw = (await ask(engine, ROUTE, {**body, "logprobs": 2}, timeout_s=timeout_s)).body
    return Answer(text_of(raw), _gaps(raw))


async def hand_over(producer: EngineUrl, consumer: EngineUrl, body: Json, timeout_s: float) -> Handoff:
    """The answer of `consumer` from KV that `producer` computed, through the engines' own HTTP. Raises `LegError`."""
    dialect = VllmDialect()
    raw = msgspec.json.decode(msgspec.json.encode(body), type=dict[str, msgspec.Raw])
    try:
        first = await ask(producer, ROUTE, msgspec.json.decode(dialect.leg1(raw)), timeout_s=timeout_s)
        ended_t = time.perf_counter()
        told = dialect.leg1_answer(first.body)
        if told is None:
            raise EngineError(f"{producer.id}: leg 1's answer names no handoff; is its KV connector configured?")
    except EngineError as error:
        raise LegError(1, error) from error
    leg2 = msgspec.json.decode(dialect.leg2(raw, told.handoff))
    leg2 |= {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    try:
        second = await ask(consumer, ROUTE, leg2, timeout_s=timeout_s)
        if not second.times_t:
            raise EngineError(f"{consumer.id}: leg 2 ended without a token")
        answer = streamed_text(second.body)
    except EngineError as error:
        raise LegError(2, error) from error
    transport = _transport(told.handoff)
    return Handoff(answer, ended_t - first.sent_t, second.times_t[0] - second.sent_t, transport)


def _transport(handoff: msgspec.Raw) -> str:
    """The handoff's mode of transfer (`pull`, `push`)."""
    told = json.loads(bytes(handoff))
    return str(told.get("transfer_mode") or "") if isinstance(told, dict) else ""


async def moved(engine: EngineUrl, timeout_s: float) -> Moved:
    """What the engine has counted so far. Raises `EngineError`."""
    page = (await ask(engine, "/metrics", timeout_s=timeout_s)).body
    seconds = _SECONDS.findall(page)
    return Moved(
        _count(_PULLED.findall(page)), _count(_BYTES.findall(page)), sum(map(float, seconds)) if seconds else None
    )


def text_of(raw: bytes) -> str:
    """The text of a completion or chat that came in one piece. Raises `EngineError`."""
    try:
        choice = json.loads(raw)["choices"][0]
        return str(choice["message"]["content"] if "message" in choice else choice["text"])
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise EngineError(f"the answer is no completion: {error!r}") from error


def _gaps(raw: bytes) -> tuple[tuple[int, float], ...]:
    """Where each token of a completion begins, and how far its second choice was; empty where that is not told."""
    try:
        told = json.loads(raw)["choices"][0].get("logprobs") or {}
        rows = zip(told.get("text_offset") or (), told.get("top_logprobs") or (), strict=False)
        pairs = [(int(start), sorted(map(float, row.values()), reverse=True)) for start, row in rows]
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return ()
    return tuple((start, best[0] - best[1]) for start, best in pairs if len(best) > 1)


def streamed_text(raw: bytes) -> str:
    """The text of a completion or chat that was streamed. Raises `EngineError`."""
    text = ""
    events = [event for event in raw.decode("utf-8", "replace").split("\n\n") if event.startswith("data: ")]
    if not events or events[-1] != "data: [DONE]":
        raise EngineError("the stream did not end with [DONE]")
    try:
        for event in events[:-1]:
            chunk = json.loads(event.removeprefix("data: "))
            if "error" in chunk:
                raise EngineError(str(chunk["error"].get("message", chunk["error"])))
            for choice in chunk["choices"]:
                text += choice["delta"].get("content") or "" if "delta" in choice else choice["text"]
    except (ValueError, KeyError, TypeError) as error:
        raise EngineError(f"the stream is none of completions: {error!r}") from error
    return text


def _count(found: Sequence[bytes]) -> int | None:
    return round(sum(map(float, found))) if found else None


def _rise(before: int | None, after: int | None) -> int | None:
    return None if after is None else after - (before or 0)
