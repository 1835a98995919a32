"""The sweep of one engine: cell after cell, alone on it, each sample kept as soon as it is there."""

import asyncio
import random
import statistics
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from narwhal.engine.dialect import VllmDialect
from narwhal.profiling.client import Answer, EngineError, EngineUrl, ask
from narwhal.profiling.facts import totals
from narwhal.profiling.plan import Plan
from narwhal.profiling.samples import DecodeSample, PrefillSample, Sample, SampleFile, TransferSample

_FIRST_ID, _LAST_ID = 100, 1900
"""Token ids of the prompts: above special ids, below the vocabulary of the smallest model tested against."""
_HANDOFF_TOKENS = 8
"""Of an answer whose handoff is timed: enough to tell its interval, on the engines as they are in that moment."""
_MOVED = "vllm:nixl_bytes_transferred_sum"
Say = Callable[[str], None]


@dataclass(slots=True)
class Sweep:
    """Measures the cells of a plan on one engine."""

    engine: EngineUrl
    model: str
    plan: Plan
    file: SampleFile
    say: Say
    timeout_s: float = 300.0
    draw: random.Random = field(default_factory=random.Random)
    """Seeded by the system: a sweep that goes on must not send what the engine's prefix cache holds already."""

    async def run(self) -> list[Sample]:
        """Measure what the file lacks; returns all samples of the plan. Raises `EngineError`."""
        there = self.file.read()
        samples: list[Sample] = []
        await self._stream(self.prompt(256), 8)  # the first request of a process compiles and allocates
        for tokens, cached in self.plan.prefill:
            cell = f"prefill {tokens} cached {cached}"
            samples.append(there.get(cell) or self._keep(await self._prefill(tokens, cached)))
        for requests, tokens in self.plan.decode:
            cell = f"decode {requests} x {tokens}"
            samples.append(there.get(cell) or self._keep(await self._decode(requests, tokens)))
        return samples

    async def handoffs(self, producer: EngineUrl) -> list[TransferSample]:
        """Measure the handoffs from `producer`, which nobody else may use meanwhile. Raises `EngineError`."""
        there = self.file.read()
        samples: list[TransferSample] = []
        for tokens in self.plan.transfer:
            sample = there.get(f"transfer {producer.id} {tokens}")
            if not isinstance(sample, TransferSample):
                sample = await self._transfer(producer, tokens)
                self._keep(sample)
            samples.append(sample)
        return samples

    def prompt(self, tokens: int) -> list[int]:
        """A prompt of random ids, unlike any before it: no prefix cache helps."""
        return [self.draw.randint(_FIRST_ID, _LAST_ID) for _ in range(tokens)]

    def _keep(self, sample: Sample) -> Sample:
        self.file.append([sample])
        value = sample.interval_s if isinstance(sample, DecodeSample) else sample.seconds
        self.say(f"{self.engine.id}: {sample.cell}: {value * 1e3:.3g} ms")
        return sample

    async def _prefill(self, tokens: int, cached: int) -> PrefillSample:
        seconds = []
        for _ in range(self.plan.repeats):
            prompt = self.prompt(tokens)
            if cached:
                await self._stream(prompt[:cached], 1)
            seconds.append(_first_token_s(await self._stream(prompt, 1)))
        middle = statistics.median(seconds)
        spread = (max(seconds) - min(seconds)) / middle
        return PrefillSample(self.engine.id, tokens, cached, middle, spread, len(seconds))

    async def _decode(self, requests: int, tokens: int) -> DecodeSample:
        prompts = [self.prompt(tokens) for _ in range(requests)]
        return await measure_decode(self.engine, self.model, prompts, self.plan.decode_tokens, self.timeout_s)

    async def _transfer(self, producer: EngineUrl, tokens: int) -> TransferSample:
        before = totals((await ask(self.engine, "/metrics")).body)
        seconds = [await self._handoff(producer, tokens) for _ in range(self.plan.repeats + 1)][1:]
        after = totals((await ask(self.engine, "/metrics")).body)
        moved = after.get(_MOVED, 0.0) - before.get(_MOVED, 0.0)
        return TransferSample(
            self.engine.id,
            producer.id,
            tokens,
            statistics.median(seconds),
            round(moved / (len(seconds) + 1)) if _MOVED in after else None,
            len(seconds),
        )

    async def _handoff(self, producer: EngineUrl, tokens: int) -> float:
        """Seconds to the first token of leg 2, less the interval of those that follow: the step that computes it."""
        dialect = VllmDialect()
        body = _body(self.model, self.prompt(tokens), _HANDOFF_TOKENS)
        raw = msgspec.json.decode(msgspec.json.encode(body), type=dict[str, msgspec.Raw])
        leg1 = await ask(producer, "/v1/completions", msgspec.json.decode(dialect.leg1(raw)), timeout_s=self.timeout_s)
        told = dialect.leg1_answer(leg1.body)
        if told is None:
            raise EngineError(f"{producer.id}: leg 1's answer names no handoff; is its KV connector configured?")
        leg2 = msgspec.json.decode(dialect.leg2(raw, told.handoff))
        answer = await ask(self.engine, "/v1/completions", leg2, timeout_s=self.timeout_s)
        return max(_first_token_s(answer) - _interval_s(answer), 1e-6)

    async def _stream(self, prompt: Sequence[int], tokens: int) -> Answer:
        body = _body(self.model, prompt, tokens)
        return await ask(self.engine, "/v1/completions", body, timeout_s=self.timeout_s)

    @asynccontextmanager
    async def loaded(self, neighbours: Sequence[EngineUrl], streams: int, tokens: int) -> AsyncIterator[None]:
        """Keep the engines that share the card busy with `streams` streams each while this one is measured."""

        async def busy(neighbour: EngineUrl) -> None:
            while True:
                await ask(neighbour, "/v1/completions", _body(self.model, self.prompt(tokens), 256), timeout_s=600.0)

        tasks = [asyncio.create_task(busy(neighbour)) for neighbour in neighbours for _ in range(streams)]
        try:
            yield
            for task in tasks:
                if task.done():  # only a failure ends one
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def measure_decode(
    engine: EngineUrl, model: str, prompts: Sequence[Sequence[int]], tokens: int, timeout_s: float
) -> DecodeSample:
    """Start a stream for each of `prompts`, equally long, and count tokens while all of them run.

    They run for `tokens` tokens, and again for four and sixteen times as many where the first ended before the last
    began, or where a busy machine let so many tokens come at once that none was dated. Raises `EngineError`.
    """
    requests, length = len(prompts), len(prompts[0])
    for output in (tokens, tokens * 4, tokens * 16):
        bodies = [_body(model, prompt, output) for prompt in prompts]
        asked = [ask(engine, "/v1/completions", body, timeout_s=timeout_s) for body in bodies]
        found = overlap(await asyncio.gather(*asked))
        if found is not None:
            interval_s, counted, produced = found
            return DecodeSample(engine.id, requests, length, requests * (length + produced), interval_s, counted)
    raise EngineError(
        f"{engine.id}: {requests} streams of {length} prompt tokens never decoded together; the engine runs fewer at a "
        "time than max_num_seqs says, or this machine is too busy to see it"
    )


def overlap(answers: Sequence[Answer]) -> tuple[float, int, float] | None:
    """Mean interval while all streams run: (seconds, tokens counted, mean tokens produced so far).

    The window opens when the last stream has its second token (its own prefill is over) and shuts when the first one
    ends. None when it holds fewer than four tokens of a stream.
    """
    if any(len(answer.times_t) < 3 for answer in answers):
        return None
    opens_t = max(answer.times_t[1] for answer in answers)
    shuts_t = min(answer.times_t[-1] for answer in answers)
    gaps, produced = [], []
    counted = 0
    for answer in answers:
        inside = [(t, n) for t, n in zip(answer.times_t, answer.tokens, strict=True) if opens_t <= t <= shuts_t]
        if len(inside) < 2 or inside[-1][1] - inside[0][1] < 4:
            return None
        (first_t, first), (last_t, last) = inside[0], inside[-1]
        gaps.append((last_t - first_t) / (last - first))
        produced.append((first + last) / 2)
        counted += last - first
    return statistics.fmean(gaps), counted, statistics.fmean(produced)


def directed_pairs(engines: Sequence[EngineUrl]) -> list[tuple[EngineUrl, EngineUrl]]:
    """Every (producer, consumer) of two different engines, in an order in which neighbours differ."""
    count = len(engines)
    return [(engines[i], engines[(i + step) % count]) for step in range(1, count) for i in range(count)]


def _first_token_s(answer: Answer) -> float:
    if not answer.times_t:
        raise EngineError("a stream came without a token; does the engine know continuous_usage_stats?")
    return answer.times_t[0] - answer.sent_t


def _interval_s(answer: Answer) -> float:
    """Mean interval of a stream; 0 where all tokens came in one piece."""
    tokens = answer.tokens[-1] - answer.tokens[0]
    return (answer.times_t[-1] - answer.times_t[0]) / tokens if tokens else 0.0


def _body(model: str, prompt: Sequence[int], tokens: int) -> dict[str, Any]:
    return {
        "model": model,
        "prompt": list(prompt),
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
