"""Carrying out what health asks for: handoffs that are tried, engines that are asked who they are."""

import asyncio
import hashlib
import logging
import random
import uuid
from typing import TYPE_CHECKING

import msgspec

from narwhal.control.commands import CheckEngine, TryPair
from narwhal.control.events import CanaryArmed, EngineChecked, Outcome, PairTried
from narwhal.fleet import EngineSpec
from narwhal.fleet.model import Fleet
from narwhal.preflight import (
    ROUTE,
    Attested,
    Json,
    LegError,
    ask_sidecar,
    block_tokens,
    hand_over,
    moved,
    prompt_of,
    text_of,
)
from narwhal.profiling import EngineError, EngineFacts, EngineUrl, ask, engine_facts, sharers
from narwhal.router.canary import Armed, arm
from narwhal.router.members import Members

if TYPE_CHECKING:
    from narwhal.router.shell import Shell

ARM_EACH_S = 60.0
"""Time between two searches for a canary, while none was found."""
ARM_AFTER_S = 2.0
"""Time until the first one, in seconds: requests come first."""
BLOCK_TOKENS = 128
"""Tokens of a block, where an engine does not tell."""
_OVERLOAD = 503
log = logging.getLogger("narwhal.router")


class Tries:
    """One task for each question. Engines are asked on connections of their own, as `narwhal check` does."""

    def __init__(self, shell: "Shell", members: Members, fleet: Fleet) -> None:
        self._shell = shell
        self._members = members
        self._fleet = fleet
        self._tasks: set[asyncio.Task[None]] = set()
        self._blocks: dict[str, int] = {}
        self._draw = random.Random()  # noqa: S311 - prompts that nobody has cached, no secret
        self.canary: Armed | None = None

    def start(self, command: TryPair | CheckEngine) -> None:
        """Find out; control hears of it."""
        self._run(self._try(command) if isinstance(command, TryPair) else self._check(command.engine))

    def begin(self) -> None:
        """Look for a canary, while the fleet file wants one."""
        self._run(self._keep_armed())

    async def stop(self) -> None:
        """Ask nothing more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _run(self, work: "asyncio._CoroutineLike[None]") -> None:
        task = self._shell.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _engine(self, name: str) -> EngineUrl:
        """How an engine is asked. Raises `EngineError` when it has left."""
        url, reach = self._members.urls.get(name), self._members.reach
        if url is None:
            raise EngineError(f"{name}: it has left")
        return EngineUrl(name, url, reach.api_key, reach.context, reach.server_name)

    # Handoffs

    async def _try(self, command: TryPair) -> None:
        shell, started_t = self._shell, self._shell.now()
        try:
            tried = await self._outcome(command)
        except LegError as error:
            tried = _failed(command, error, "leg_1" if error.leg == 1 else "leg_2")
        except EngineError as error:
            tried = _failed(command, error, "untold")
        except Exception as error:  # control waits for an answer to every question
            shell.loop.call_exception_handler({"message": f"trying {command.producer}", "exception": error})
            tried = _failed(command, EngineError("a bug"), "untold")
        shell.metrics.tried(command.purpose, tried.outcome)
        shell.metrics.carried(command.producer, command.consumer, tried.transport)
        log.debug("%s in %.3f s", tried, shell.now() - started_t)
        shell.feed(msgspec.structs.replace(tried, t=shell.now()))

    async def _outcome(self, command: TryPair) -> PairTried:
        producer, consumer = self._engine(command.producer), self._engine(command.consumer)
        compared = self.canary if command.purpose == "canary" else None
        prompt = compared.prompt if compared else prompt_of(await self._block(producer) + 1, self._draw)
        body: Json = {
            "model": self._fleet.model.name,
            "prompt": prompt,
            "max_tokens": compared.tokens if compared else 2,  # the second shows that it decodes
            "temperature": 0,
            "ignore_eos": True,
        }
        if producer.id == consumer.id:
            try:
                await ask(producer, ROUTE, _salted(body), timeout_s=command.timeout_s)
            except EngineError as error:
                raise LegError(1, error) from error
            return PairTried(0.0, command.number, producer.id, consumer.id, "right")
        before = await moved(consumer, command.timeout_s) if compared else None
        handoff = await hand_over(producer, consumer, _salted(body), command.timeout_s)
        outcome: Outcome = "right"
        reference, nbytes = "", 0
        if compared and before is not None:
            try:
                own = text_of((await ask(consumer, ROUTE, _salted(body), timeout_s=command.timeout_s)).body)
            except EngineError:
                return PairTried(0.0, command.number, producer.id, consumer.id, "reference")
            outcome = "right" if own == handoff.answer else "wrong"
            reference = _digest(own)
            nbytes = (await moved(consumer, command.timeout_s)).since(before).bytes or 0
        return PairTried(
            *(0.0, command.number, producer.id, consumer.id, outcome),
            *(_digest(handoff.answer), reference, handoff.first_token_s, nbytes, handoff.transport),
        )

    async def _block(self, engine: EngineUrl) -> int:
        """Tokens of an engine's block: only whole ones are handed over."""
        known = self._blocks.get(engine.id)
        if known is None:
            try:
                timeout_s = self._shell.settings.recovery.probe_timeout_s
                known = block_tokens((await ask(engine, "/metrics", timeout_s=timeout_s)).body)
            except (EngineError, ValueError):
                return BLOCK_TOKENS
            self._blocks[engine.id] = known
        return known

    # Identity

    async def _check(self, name: str) -> None:
        shell = self._shell
        try:
            checked = await self._identity(name)
        except EngineError as error:
            checked = EngineChecked(0.0, name, "", "", problem=str(error))
        except Exception as error:
            shell.loop.call_exception_handler({"message": f"checking {name}", "exception": error})
            checked = EngineChecked(0.0, name, "", "", problem="a bug")
        shell.feed(msgspec.structs.replace(checked, t=shell.now()))

    async def _identity(self, name: str) -> EngineChecked:
        """What an engine runs with, and what is wrong with it. Raises `EngineError`."""
        engine, timeout_s = self._engine(name), 2 * self._shell.settings.recovery.probe_timeout_s
        page = (await ask(engine, "/metrics", timeout_s=timeout_s)).body
        seen = self._shell.dialect.metrics(page.decode("utf-8", "replace"))
        try:
            models = (await ask(engine, "/v1/models", timeout_s=timeout_s)).body
            version = (await ask(engine, "/version", timeout_s=timeout_s)).body
        except EngineError as error:
            if error.status != 404:
                raise
            models, version = b"", b""
        generation = self._shell.dialect.generation(models) or (seen.started_at if seen else "")
        names = self._shell.dialect.model_names(models)
        if names and self._fleet.model.name not in names:
            problem = f"it does not serve {self._fleet.model.name}"
            return EngineChecked(0.0, name, generation, "", problem=problem)
        self._blocks.pop(name, None)
        spec = self._members.specs.get(name)
        if spec is None:
            return EngineChecked(0.0, name, generation, "")
        try:
            shared_by = sharers(self._members.specs.values(), spec)
            facts = engine_facts(self._fleet, spec, shared_by, page, version)
        except EngineError:
            return EngineChecked(0.0, name, generation, "")
        return EngineChecked(
            0.0, name, generation, facts.contract, form=kv_form(facts), attested=await self._attested(spec)
        )

    async def _attested(self, spec: EngineSpec) -> str:
        """Digest of what its sidecar attests of an engine's KV and model; empty where it tells nothing in time."""
        try:
            async with asyncio.timeout(2 * self._shell.settings.recovery.probe_timeout_s):
                found = await ask_sidecar(spec, None)
        except TimeoutError:
            return ""
        return _digest(repr(sorted(found.terms().items()))) if isinstance(found, Attested) and found.terms() else ""

    # The canary

    def armed_anew(self) -> None:
        """Control is another, which may know of another router's canary: tell it of the one that is here."""
        tokens = 0 if self.canary is None else len(self.canary.prompt)
        self._shell.feed(CanaryArmed(self._shell.now(), tokens))

    async def _keep_armed(self) -> None:
        await asyncio.sleep(ARM_AFTER_S)
        while self.canary is None:
            rules = self._shell.settings.recovery.canary
            engine = next((e for e in self._shell.control.pool.engines.values() if e.open), None)
            if rules.share > 0 and engine is not None:
                await self._arm(engine.id, rules.min_gap)
            if self.canary is None:
                await asyncio.sleep(ARM_EACH_S if engine is not None else ARM_AFTER_S)

    async def _arm(self, name: str, min_gap: float) -> None:
        shell = self._shell
        try:
            engine = self._engine(name)
            found = await arm(engine, self._fleet.model.name, await self._block(engine), min_gap, self._draw)
        except EngineError as error:
            log.info("no canary yet: %s", error)
            return
        if isinstance(found, str):
            log.warning("no canary is sent: %s", found)
            return
        self.canary = found
        log.info("canary armed: %d tokens, gap %.2f, noise %.3f", len(found.prompt), found.gap, found.noise)
        shell.feed(CanaryArmed(shell.now(), len(found.prompt)))


def _failed(command: TryPair, error: EngineError, outcome: Outcome) -> PairTried:
    """What did not come over; an engine that is busy, or refuses what it was asked, is not ill."""
    told: Outcome = "untold" if 400 <= error.status < 500 or error.status == _OVERLOAD else outcome
    return PairTried(0.0, command.number, command.producer, command.consumer, told)


def _salted(body: Json) -> Json:
    """The body with a prefix cache of its own."""
    return {**body, "cache_salt": uuid.uuid4().hex}


def kv_form(facts: EngineFacts) -> str:
    """Digest of what any engine tells of its KV: its version, the size of a block, the type of a value."""
    geometry = facts.terms["geometry"]
    return _digest(repr((facts.version, geometry["block_size"], geometry["cache_dtype"])))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
