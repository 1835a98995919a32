"""KV over every directed pair: whether it moves, whether the answer is right, and whose fault it is when not."""

import asyncio
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from narwhal.preflight.canary import (
    ROUTE,
    Handoff,
    Json,
    LegError,
    Moved,
    canary_body,
    hand_over,
    local_answer,
    moved,
)
from narwhal.preflight.document import CheckResult, PairResult, Status
from narwhal.profiling import EngineError, EngineUrl, ask

Pair = tuple[str, str]
"""Producer and consumer."""
_AT_A_TIME = 4
_DRAWS = 3
"""Prompts to try before near ties are all that is found."""
_LONG_TOKENS = 8192
"""Of the long prompt: enough to tell how time grows with length, and prefilled in seconds."""
_LOOK_S = 10.0
"""How long an engine may take for one token, when it is looked at after a failure."""


@dataclass(frozen=True, slots=True)
class Tried:
    """One handoff, what it moved, and what the producer answers alone."""

    handoff: Handoff
    moved: Moved
    wanted: str
    near_tie: bool = False
    """The answers part where rounding decides between two tokens: they prove nothing."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A status with its reason and the next step."""

    status: Status
    reason: str
    next_step: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a pair."""

    producer: str
    consumer: str
    prompt_tokens: int
    tried: tuple[Tried, ...]
    produced: Verdict
    consumed: Verdict
    seconds: float

    @property
    def why(self) -> str:
        """Why the pair does not do."""
        return self.produced.reason if self.produced.status == "FAIL" else self.consumed.reason

    @property
    def unequal(self) -> bool:
        """Whether an answer was wrong."""
        return any(one.handoff.answer != one.wanted and not one.near_tie for one in self.tried)


@dataclass(slots=True)
class Handovers:
    """Tries pairs, at most four at a time, each engine producing for one and consuming for one of them."""

    engines: Mapping[str, EngineUrl]
    model: str
    block_tokens: int
    timeout_s: float
    repeats: int = 1
    say: Callable[[str], None] = lambda text: None
    draw: random.Random = field(default_factory=random.Random)
    """Seeded by the system: an engine that was checked before must not have the prompts cached."""
    down: dict[str, str] = field(default_factory=dict)
    """Engines that stopped answering, and what they did."""

    async def run(self, pairs: Sequence[Pair]) -> list[Outcome]:
        """Try all pairs, in the order of `directed_pairs`: a round is as long as there are engines."""
        outcomes: list[Outcome] = []
        most = asyncio.Semaphore(_AT_A_TIME)
        for start in range(0, len(pairs), len(self.engines)):
            some = pairs[start : start + len(self.engines)]
            outcomes += await asyncio.gather(*(self._within(most, *pair) for pair in some))
        return outcomes

    async def _within(self, most: asyncio.Semaphore, producer: str, consumer: str) -> Outcome:
        async with most:
            started_t = time.perf_counter()
            tried: list[Tried] = []
            produced, consumed = await self._pair(producer, consumer, tried)
            self.say(f"{producer} > {consumer}: {consumed.status} {consumed.reason}")
            tokens = len(self._body()["prompt"])
            return Outcome(
                producer, consumer, tokens, tuple(tried), produced, consumed, time.perf_counter() - started_t
            )

    async def _pair(self, producer: str, consumer: str, tried: list[Tried]) -> tuple[Verdict, Verdict]:
        for engine in (producer, consumer):
            if engine in self.down:
                skipped = Verdict("SKIP", f"{engine} does not answer", f"see {engine} first")
                return skipped, skipped
        try:
            for _ in range(self.repeats):
                one = await self._once(self.engines[producer], self.engines[consumer])
                tried.append(one)
        except LegError as error:
            if error.leg == 1:
                return self._no_kv(producer, error)
            return Verdict("ok", "leg 1 answered"), await self._blame(producer, consumer, error)
        except EngineError as error:
            return Verdict("ok", "leg 1 answered"), Verdict("FAIL", str(error), "look at its log; check again")
        return Verdict("ok", f"handoffs named: {len(tried)}"), judge(producer, tried, len(self._body()["prompt"]))

    async def _once(self, producer: EngineUrl, consumer: EngineUrl) -> Tried:
        """One handoff, with another prompt where rounding made the answers differ."""
        for _ in range(_DRAWS):
            body = self._body()
            handoff, gained = await self.hand_over((producer.id, consumer.id), body)
            wanted = await local_answer(producer, body, self.timeout_s)
            near_tie = handoff.answer != wanted.text and wanted.is_near_tie(handoff.answer)
            if not near_tie:
                break
        return Tried(handoff, gained, wanted.text, near_tie)

    def _body(self) -> Json:
        return canary_body(self.model, self.block_tokens, self.draw)

    def long_body(self, most_tokens: int) -> Json:
        """A body with a long prompt, to be handed over from one engine to each of the others: it prefills it once."""
        blocks = max((min(most_tokens, _LONG_TOKENS) - 1) // self.block_tokens, 1)
        return canary_body(self.model, self.block_tokens, self.draw, blocks)

    async def hand_over(self, pair: Pair, body: Json) -> tuple[Handoff, Moved]:
        """One handoff over a pair, and what its consumer counted. Raises `EngineError`, `LegError` for a leg's."""
        consumer = self.engines[pair[1]]
        before = await moved(consumer, self.timeout_s)
        handoff = await hand_over(self.engines[pair[0]], consumer, body, self.timeout_s)
        gained = (await moved(consumer, self.timeout_s)).since(before)
        if not gained.tokens or not gained.bytes:  # an idle engine counts a transfer at its next step
            await ask(consumer, ROUTE, {**self._body(), "max_tokens": 1}, timeout_s=self.timeout_s)
            gained = (await moved(consumer, self.timeout_s)).since(before)
        return handoff, gained

    def _no_kv(self, producer: str, error: LegError) -> tuple[Verdict, Verdict]:
        if error.cause in ("refused", "timeout"):
            self.down[producer] = str(error)
        failed = Verdict("FAIL", f"leg 1: {error}", f"look at the log of {producer}")
        return failed, Verdict("SKIP", f"{producer} gave no KV", f"see produce of {producer}")

    async def _blame(self, producer: str, consumer: str, error: LegError) -> Verdict:
        """Look at both sides before judging: a consumer hangs too when its producer does."""
        well = await asyncio.gather(self._look(producer), self._look(consumer))
        bad = [(engine, why) for engine, why in zip((producer, consumer), well, strict=True) if why]
        self.down |= dict(bad)
        if bad:
            said = " and ".join(f"{engine} does not answer alone either ({why})" for engine, why in bad)
            return Verdict("FAIL", f"leg 2: {error}; {said}", f"look at the log of {bad[0][0]} and restart it")
        step = f"check that {consumer} reaches the side channel of {producer}, and the transport between them"
        return Verdict("FAIL", f"leg 2: {error}; both engines answer alone", step)

    async def _look(self, engine: str) -> str:
        """Why an engine is not well; empty when it gives a token."""
        body = {**self._body(), "max_tokens": 1}
        try:
            await ask(self.engines[engine], ROUTE, body, timeout_s=min(_LOOK_S, self.timeout_s))
        except EngineError as error:
            return str(error).removeprefix(f"{engine}: ")
        return ""


def judge(producer: str, tried: Sequence[Tried], prompt_tokens: int) -> Verdict:
    """What the handoffs of a pair prove: equal answers, and KV that was moved and not computed again.

    The consumer may compute the last token of a prompt itself, and nothing else.
    """
    for one in tried:
        if one.near_tie:
            said = f"at each of {_DRAWS} prompts the answers part where two tokens are nearly as likely"
            return Verdict("WARN", said, "check again; a trained model is surer of its tokens than a made one")
        if one.handoff.answer != one.wanted:
            said = f"answered {one.handoff.answer!r}, {producer} alone answers {one.wanted!r}"
            return Verdict("FAIL", said, "do not serve over this pair: look for KV of another model, type or layout")
    tokens = [one.moved.tokens for one in tried]
    nbytes = [one.moved.bytes for one in tried]
    told = [count for count in tokens if count is not None]
    if told and min(told) < prompt_tokens - 1:
        said = (
            f"the answer is right, but {min(told)} of {prompt_tokens} tokens were pulled; the rest was computed again"
        )
        return Verdict("FAIL", said, "look at the consumer's log: its KV connector, and kv_load_failure_policy")
    middle_s = statistics.median(one.handoff.first_token_s for one in tried)
    seen = f"{prompt_tokens} tokens, first token after {middle_s * 1e3:.3g} ms"
    if None in tokens:
        return Verdict("WARN", f"{seen}; the engine does not count tokens by source", "use an engine that counts them")
    if max(told) > prompt_tokens:
        return Verdict("WARN", f"{seen}; other requests were served meanwhile", "check again while the fleet is idle")
    if not all(nbytes):
        said = f"{seen}; the engine counts no bytes as transferred by NIXL"
        return Verdict("WARN", said, "see whether its connector tells vllm:nixl_bytes_transferred")
    return Verdict("ok", f"{seen}, {sum(count or 0 for count in nbytes)} bytes")


def common_cause(outcomes: Sequence[Outcome]) -> dict[Pair, str]:
    """For pairs with wrong answers: the side that all of them share and no right pair has, in a sentence."""
    wrong = [outcome for outcome in outcomes if outcome.unequal]
    right = [outcome for outcome in outcomes if outcome.tried and not outcome.unequal]
    found: dict[Pair, str] = {}
    for side, verb in (("producer", "sends"), ("consumer", "receives")):
        for engine in {getattr(outcome, side) for outcome in wrong}:
            mine = [outcome for outcome in wrong if getattr(outcome, side) == engine]
            if len(mine) > 1 and not any(getattr(outcome, side) == engine for outcome in right):
                said = f"every pair in which {engine} {verb} KV answers wrongly: look at {engine} first"
                found |= {(outcome.producer, outcome.consumer): said for outcome in mine}
    return found


def pair_checks(outcomes: Sequence[Outcome]) -> list[CheckResult]:
    """The checks `produce`, of each producer, and `consume`, of each pair."""
    rows: list[CheckResult] = []
    for producer in dict.fromkeys(outcome.producer for outcome in outcomes):
        mine = [outcome for outcome in outcomes if outcome.producer == producer]
        rows.append(_produce(producer, mine))
    causes = common_cause(outcomes)
    for outcome in outcomes:
        seen = outcome.consumed
        rows.append(
            CheckResult(
                name="consume",
                subject=f"{outcome.producer} > {outcome.consumer}",
                status=seen.status,
                reason=seen.reason,
                next_step=causes.get((outcome.producer, outcome.consumer), seen.next_step),
                seconds=outcome.seconds,
            )
        )
    return rows


def _produce(producer: str, outcomes: Sequence[Outcome]) -> CheckResult:
    """The worst of what its legs 1 came to; skipped only where none was sent."""
    order: tuple[Status, ...] = ("FAIL", "ok", "SKIP")
    worst = min((outcome.produced for outcome in outcomes), key=lambda seen: order.index(seen.status))
    legs = [one.handoff.leg1_s for outcome in outcomes for one in outcome.tried]
    reason = worst.reason
    if worst.status == "ok" and legs:
        reason = f"handoffs named: {len(legs)}, leg 1 took {statistics.median(legs) * 1e3:.3g} ms"
    return CheckResult(
        name="produce",
        subject=producer,
        status=worst.status,
        reason=reason,
        next_step=worst.next_step,
        seconds=sum(legs),
    )


def pair_result(outcome: Outcome) -> PairResult:
    """The pair as evidence."""
    tried = outcome.tried
    tokens, nbytes = [one.moved.tokens for one in tried], [one.moved.bytes for one in tried]
    return PairResult(
        producer=outcome.producer,
        consumer=outcome.consumer,
        status=outcome.consumed.status,
        handoffs=len(tried),
        prompt_tokens=outcome.prompt_tokens,
        moved_tokens=None if None in tokens else sum(count or 0 for count in tokens),
        moved_bytes=None if None in nbytes else sum(count or 0 for count in nbytes),
        leg1_s=[one.handoff.leg1_s for one in tried],
        first_token_s=[one.handoff.first_token_s for one in tried],
    )
