"""One preflight of a running fleet: every check in order, and the document that tells of it."""

import asyncio
import hashlib
import random
import shlex
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import narwhal
from narwhal.control import Curves
from narwhal.documents import write_atomically
from narwhal.fleet import EngineSpec, Expanded, Profile, ProfileError
from narwhal.preflight.asking import T, failures, seconds_of, timed
from narwhal.preflight.canary import TOKENS, canary_body, prompt_of
from narwhal.preflight.deadline import Busy, deadline_check, deadline_result, first_token
from narwhal.preflight.document import NAMES, CheckResult, FirstToken, Name, Preflight, TransportResult, verdict
from narwhal.preflight.engines import (
    NEXT_STEP,
    ask_model,
    ask_names,
    ask_tokens,
    check_health,
    judge_contracts,
    judge_models,
    judge_tokens,
)
from narwhal.preflight.identity import Attested, Sidecars, ask_sidecar, judge_attested, judge_launches, launches
from narwhal.preflight.pairs import Handovers, Outcome, Verdict, pair_checks, pair_result
from narwhal.preflight.speed import judge_pace, judge_profile, judge_slo
from narwhal.preflight.transport import LongHandoff, expected, judge_transport, transport_rows
from narwhal.profiling import (
    EngineError,
    EngineFacts,
    EngineUrl,
    directed_pairs,
    engine_urls,
    measure_decode,
    read_facts,
    sharing,
    stored_profile,
)

Say = Callable[[str], None]
_REACH_S = 10.0
_BATCH, _PROMPT_TOKENS, _DECODE_TOKENS = 4, 128, 32
"""Of the decodes that are measured against the profile."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be checked, and how."""

    expanded: Expanded
    file: Path
    """The fleet file."""
    profiles: Path
    """Folder of measured profiles."""
    only: tuple[Name, ...] = ()
    """Only these checks, and `reach`, which the others need; empty: all."""
    ring: bool = False
    """Each engine hands over to the next one only."""
    repeats: int = 1
    """Handoffs of each pair."""
    timeout_s: float = 30.0
    """How long an engine may take for one answer."""


@dataclass(slots=True)
class Run:
    """A preflight while it is made."""

    wish: Wish
    urls: Mapping[str, EngineUrl]
    """How each engine is asked."""
    say: Say
    checks: list[CheckResult] = field(default_factory=list)
    down: dict[str, str] = field(default_factory=dict)
    """Engines that do not answer, and what they did."""
    facts: dict[str, EngineFacts] = field(default_factory=dict)
    profiles: dict[str, Profile] = field(default_factory=dict)
    """Of each engine that has one whose curves are near their samples: by others nothing can be judged."""

    @property
    def engines(self) -> list[EngineUrl]:
        """Engines that answer so far."""
        return [url for engine, url in self.urls.items() if engine not in self.down]

    def wants(self, *names: Name) -> bool:
        """Whether one of these checks is asked for."""
        return not self.wish.only or any(name in self.wish.only for name in names)

    async def reach(self) -> None:
        """Health of every engine."""
        found = await self._each("reach", lambda engine: check_health(engine, min(_REACH_S, self.wish.timeout_s)))
        errors = {engine: one for engine, (one, _) in found.items() if isinstance(one, EngineError)}
        self.down |= {engine: str(error) for engine, error in errors.items()}
        seen = {engine: Verdict("ok", "healthy") for engine in found}
        seen |= {engine: Verdict("FAIL", str(error), NEXT_STEP[error.cause]) for engine, error in errors.items()}
        self._add("reach", seen, seconds_of(found))

    async def contract(self) -> None:
        """One contract for all."""
        expanded = self.wish.expanded
        found = await self._each("contract", lambda e: read_facts(expanded, expanded.engine(e.id), e))
        self.facts = {engine: told for engine, (told, _) in found.items() if isinstance(told, EngineFacts)}
        self._add("contract", judge_contracts(self.facts) | failures(found), seconds_of(found))

    async def launch(self) -> None:
        """The launch that the fleet file renders to, on every engine."""
        found = await self._each("launch", lambda e: ask_names(e, self.wish.timeout_s))
        told = {engine: one for engine, (one, _) in found.items() if not isinstance(one, EngineError)}
        self._add("launch", judge_launches(told, launches(self.wish.expanded)) | failures(found), seconds_of(found))

    async def compatible(self) -> None:
        """KV that goes together, by what the sidecars attest."""
        expanded, rendered = self.wish.expanded, launches(self.wish.expanded)
        found = await self._each("compatible", lambda e: ask_sidecar(expanded.engine(e.id), rendered[e.id]))
        sidecars = Sidecars()
        for engine, (one, _) in found.items():
            if isinstance(one, Attested):
                sidecars.attested[engine] = one
            elif isinstance(one, Verdict):
                sidecars.silent[engine] = one
        self._add("compatible", judge_attested(sidecars), seconds_of(found))

    async def model(self) -> None:
        """The fleet's model on every engine, with the same answer."""
        fleet = self.wish.expanded.fleet
        body = canary_body(fleet.model.name, self._block_tokens(), random.Random())  # noqa: S311 - a prompt, no secret
        found = await self._each("model", lambda e: ask_model(e, fleet.model.name, body, self.wish.timeout_s))
        told = {engine: one for engine, (one, _) in found.items() if not isinstance(one, EngineError)}
        seen = judge_models(told, fleet.model.name, fleet.engines.max_model_len) | failures(found)
        self._add("model", seen, seconds_of(found))

    async def tokenize(self) -> None:
        """The same tokens on every engine."""
        model = self.wish.expanded.fleet.model.name
        found = await self._each("tokenize", lambda e: ask_tokens(e, model, self.wish.timeout_s))
        told = {engine: one for engine, (one, _) in found.items() if not isinstance(one, EngineError)}
        self._add("tokenize", judge_tokens(told) | failures(found), seconds_of(found))

    def profile(self) -> None:
        """The stored profile of each engine's contract."""
        seen: dict[str, Verdict] = {}
        now = datetime.now(UTC)
        for engine, told in self.facts.items():
            try:
                profile = stored_profile(self.wish.profiles, told.contract)
            except ProfileError as error:
                seen[engine] = Verdict("FAIL", str(error), "narwhal profile FLEET --fresh")
                continue
            seen[engine] = judge_profile(profile, told.contract, now)
            if profile is not None and seen[engine].status == "ok":
                self.profiles[engine] = profile
        self._add("profile", seen)

    async def pace(self) -> None:
        """Decode intervals against the profiles: engines that share something one by one, the others together."""
        specs = [self.wish.expanded.engine(engine) for engine in self.profiles if engine not in self.down]
        seen, seconds = self._without_profile(), {}
        for spec, verdict_, took_s in await _grouped(self.wish.expanded, specs, self._pace):
            seen[spec.id], seconds[spec.id] = verdict_, took_s
        self._add("pace", seen, seconds)

    async def _pace(self, spec: EngineSpec) -> Verdict:
        self.say(f"{spec.id}: pace")
        fleet, profile = self.wish.expanded.fleet, self.profiles[spec.id]
        length = min(_PROMPT_TOKENS, fleet.engines.max_model_len // 2)
        draw, samples = random.Random(), []  # noqa: S311 - prompts, no secret
        try:
            for requests in sorted({1, min(_BATCH, fleet.engines.max_num_seqs)}):
                prompts = [prompt_of(length, draw) for _ in range(requests)]
                samples.append(
                    await measure_decode(
                        self.urls[spec.id], fleet.model.name, prompts, _DECODE_TOKENS, self.wish.timeout_s
                    )
                )
        except EngineError as error:
            return Verdict("FAIL", str(error), f"look at the log of {spec.id}")
        return judge_pace([(one.requests, one.kv_tokens, one.interval_s) for one in samples], profile)

    def slo(self) -> None:
        """Whether the promises can be kept by the profiles."""
        fleet = self.wish.expanded.fleet
        seen = self._without_profile()
        for engine, profile in self.profiles.items():
            seen[engine] = judge_slo(profile, fleet.slo, fleet.engines.max_model_len)
        self._add("slo", seen)

    async def pairs(self) -> list[Outcome]:
        """Handoffs over the pairs, with the engines that answer."""
        pairs = [(producer.id, consumer.id) for producer, consumer in directed_pairs(list(self.urls.values()))]
        outcomes = await self._handovers().run(pairs[: len(self.urls)] if self.wish.ring else pairs)
        for row in pair_checks(outcomes):
            self.keep(row)
        if not outcomes:
            for name in ("produce", "consume"):
                self._add_one(name, "fleet", Verdict("SKIP", "a fleet of one engine has no pair"))
        return outcomes

    async def long(self, outcomes: Sequence[Outcome]) -> list[LongHandoff]:
        """A long prompt over each pair that handed over a short one, one by one: nothing else moves meanwhile."""
        handovers = self._handovers()
        most = self.wish.expanded.fleet.engines.max_model_len - 1 - TOKENS
        bodies = {outcome.producer: handovers.long_body(most) for outcome in outcomes}
        found: list[LongHandoff] = []
        for outcome in outcomes:
            pair, body = (outcome.producer, outcome.consumer), bodies[outcome.producer]
            if outcome.consumed.status not in ("ok", "WARN"):
                skipped = Verdict("SKIP", "no short prompt was handed over", "see produce and consume")
                self._add_one("transport", " > ".join(pair), skipped)
                continue
            self.say(f"{' > '.join(pair)}: {len(body['prompt'])} tokens")
            try:
                handoff, gained = await handovers.hand_over(pair, body)
            except EngineError as error:
                failed = Verdict("FAIL", f"a long prompt was not handed over: {error}", "look at the logs of both")
                self._add_one("transport", " > ".join(pair), failed)
                continue
            found.append(LongHandoff(*pair, len(body["prompt"]), handoff.first_token_s, gained.bytes, gained.seconds))
        return found

    def transport(self, long: Sequence[LongHandoff]) -> list[TransportResult]:
        """Over which transport each pair's KV went."""
        expanded = self.wish.expanded
        judged = []
        for one in long:
            wanted = expected(expanded.fleet.engines.runtime, *map(expanded.engine, one.pair))
            judged.append((one, *judge_transport(one, wanted)))
        checks, evidence = transport_rows(judged)
        for row in checks:
            self.keep(row)
        return evidence

    def deadline(self, outcomes: Sequence[Outcome], long: Sequence[LongHandoff]) -> FirstToken | None:
        """The deadline for first tokens, from the slowest pair."""
        if not long:
            self.keep(
                deadline_result("SKIP", "no long handoff was measured", "see produce, consume and transport first")
            )
            return None
        fleet = self.wish.expanded.fleet
        chunk, tpot_s = fleet.engines.max_num_batched_tokens, fleet.slo.tpot_s
        known = [Curves.from_profile(profile).prefill_s(chunk) for profile in self.profiles.values()]
        busy = Busy(
            at_once=(len(self.urls) - 1) * fleet.serving.prefill_in_flight,
            step_s=max(known, default=fleet.slo.ttft_for(chunk)) + tpot_s,
        )
        longest, configured_s = fleet.engines.max_model_len - 1, fleet.serving.deadlines.first_token_s
        found = first_token(outcomes, long, busy, configured_s, longest)
        self.keep(deadline_check(found))
        return found

    def _handovers(self) -> Handovers:
        model = self.wish.expanded.fleet.model.name
        return Handovers(
            self.urls, model, self._block_tokens(), self.wish.timeout_s, self.wish.repeats, self.say, down=self.down
        )

    def _block_tokens(self) -> int:
        return next((told.block_tokens for told in self.facts.values()), 16)

    def _without_profile(self) -> dict[str, Verdict]:
        return {
            engine: Verdict("SKIP", "it has no profile to go by", "see the check profile")
            for engine in self.facts
            if engine not in self.profiles
        }

    async def _each(
        self, name: Name, work: Callable[[EngineUrl], Awaitable[T]]
    ) -> dict[str, tuple[T | EngineError, float]]:
        """What `work` gives of every engine that answers, or its error, and how long it took."""
        if self.wants(name):
            self.say(f"{name} …")
        engines = self.engines
        found = await asyncio.gather(*(timed(work(engine)) for engine in engines))
        for engine, (one, _) in zip(engines, found, strict=True):
            if isinstance(one, EngineError) and one.cause in ("refused", "timeout"):
                self.down[engine.id] = str(one)
        return {engine.id: one for engine, one in zip(engines, found, strict=True)}

    def _add(self, name: Name, seen: Mapping[str, Verdict], seconds: Mapping[str, float] = {}) -> None:
        for spec in self.wish.expanded.engines:
            missing = Verdict("SKIP", f"{spec.id} does not answer", f"see {spec.id} first")
            if spec.id not in self.down and spec.id not in self.facts:
                missing = Verdict("SKIP", f"{spec.id} does not tell its contract", f"see contract of {spec.id}")
            self._add_one(name, spec.id, seen.get(spec.id, missing), seconds.get(spec.id, 0.0))

    def _add_one(self, name: Name, subject: str, seen: Verdict, seconds: float = 0.0) -> None:
        self.keep(
            CheckResult(
                name=name,
                subject=subject,
                status=seen.status,
                reason=seen.reason.removeprefix(f"{subject}: "),
                next_step=seen.next_step,
                seconds=seconds,
            )
        )

    def keep(self, row: CheckResult) -> None:
        """Have a result in the document, if its check was asked for."""
        if row.name == "reach" or self.wants(row.name):
            step = row.next_step.replace("FLEET", shlex.quote(str(self.wish.file)))
            self.checks.append(row.model_copy(update={"next_step": step}))


async def preflight(wish: Wish, say: Say) -> Preflight:
    """Check a running fleet.

    Raises `OSError` when the fleet file cannot be read, and `EngineError` when the engines' key or authority cannot.
    """
    digest = hashlib.sha256(wish.file.read_bytes()).hexdigest()
    at, started_t = datetime.now(UTC), time.perf_counter()
    run = Run(wish, engine_urls(wish.expanded), say)
    await run.reach()
    await run.contract()
    run.profile()
    if run.wants("launch"):
        await run.launch()
    if run.wants("compatible"):
        await run.compatible()
    if run.wants("model"):
        await run.model()
    if run.wants("pace"):
        await run.pace()
    if run.wants("tokenize"):
        await run.tokenize()
    outcomes = await run.pairs() if run.wants("produce", "consume", "transport", "deadline") else []
    long = await run.long(outcomes) if run.wants("transport", "deadline") else []
    transports = run.transport(long)
    run.slo()
    fleet = wish.expanded.fleet
    token = run.deadline(outcomes, long) if run.wants("deadline") else None
    return Preflight(
        kind="Preflight",
        fleet=fleet.metadata.name,
        fleet_digest=f"sha256:{digest}",
        narwhal=narwhal.__version__,
        at=at.isoformat(timespec="milliseconds"),
        seconds=time.perf_counter() - started_t,
        pairing="ring" if wish.ring else "all",
        repeats=wish.repeats,
        only=list(wish.only),
        versions={engine: told.version for engine, told in run.facts.items()},
        contracts={engine: told.contract for engine, told in run.facts.items()},
        checks=sorted(run.checks, key=lambda check: NAMES.index(check.name)),
        pairs=[pair_result(outcome) for outcome in outcomes],
        transports=transports,
        first_token=token,
        verdict=verdict(run.checks),
    )


def save_preflight(folder: Path, document: Preflight) -> Path:
    """Write the evidence to a file of its own, named after its time, for its owner only. Raises `OSError`."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    stamp = datetime.fromisoformat(document.at).strftime("%Y%m%dT%H%M%S.%f")[:-3] + "Z"
    path = folder / f"{stamp}.json"
    write_atomically(path, document.model_dump_json(indent=2, by_alias=True) + "\n", mode=0o600)
    return path


async def _grouped(
    expanded: Expanded, specs: Sequence[EngineSpec], work: Callable[[EngineSpec], Awaitable[Verdict]]
) -> list[tuple[EngineSpec, Verdict, float]]:
    async def in_turn(members: Sequence[EngineSpec]) -> list[tuple[EngineSpec, Verdict, float]]:
        seen = []
        for spec in members:
            started_t = time.perf_counter()
            seen.append((spec, await work(spec), time.perf_counter() - started_t))
        return seen

    groups = await asyncio.gather(*map(in_turn, sharing(expanded, specs)))
    return [one for group in groups for one in group]
