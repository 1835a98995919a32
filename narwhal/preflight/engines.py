"""What engines say of themselves, one against the others: health, contract, model, tokens."""

import json
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from narwhal.engine.dialect import GENERATION_NAME, LAUNCH_NAME
from narwhal.preflight.canary import Json, local_answer
from narwhal.preflight.pairs import Verdict
from narwhal.profiling import Cause, EngineError, EngineFacts, EngineUrl, ask

T = TypeVar("T", bound=Hashable)
_TEXT = "The narwhal turns with the tide; 42 tusks, naïve as snow."
NEXT_STEP: Mapping[Cause, str] = {
    "refused": "start it, or correct its address in the fleet file",
    "timeout": "it hangs, or packets are dropped on the way: look at its log and the firewall",
    "status": "it listens and is not well: look at its log",
    "other": "look at its address, its certificate and its log",
}
"""What to do about an engine that does not answer, by the kind of failure."""


@dataclass(frozen=True, slots=True)
class ModelTold:
    """What an engine tells of its model."""

    names: tuple[str, ...]
    max_model_len: int | None
    answer: str | None
    """Greedy answer to the common prompt; None: it does not hold the model's name."""


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


async def check_health(engine: EngineUrl, timeout_s: float) -> None:
    """Raises `EngineError` when an engine's health does not answer 200."""
    await ask(engine, "/health", timeout_s=timeout_s)


def judge_contracts(facts: Mapping[str, EngineFacts]) -> dict[str, Verdict]:
    """Whether all engines have one contract; where not, in which fields the odd ones differ."""
    common = _most({engine: told.contract for engine, told in facts.items()})
    usual = next((told for told in facts.values() if told.contract == common), None)
    verdicts = {}
    for engine, told in facts.items():
        if usual is None or told.contract == common:
            verdicts[engine] = Verdict("ok", f"contract {told.contract}, version {told.version}")
            continue
        mine, theirs = _flat(told.terms), _flat(usual.terms)
        fields = [name for name in mine | theirs if mine.get(name) != theirs.get(name)]
        differs = "; ".join(f"{name} is {mine.get(name)}, not {theirs.get(name)}" for name in sorted(fields))
        said = f"contract {told.contract} is not {common}, that of {usual.engine}: {differs}"
        verdicts[engine] = Verdict("FAIL", said, f"start {engine} from the launch that the fleet file renders to")
    return verdicts


async def ask_model(engine: EngineUrl, model: str, body: Json, timeout_s: float) -> ModelTold:
    """What an engine tells of its model, and its answer to a prompt. Raises `EngineError`."""
    told = await _ask_models(engine, timeout_s)
    names = tuple(one.id for one in told)
    answer = (await local_answer(engine, body, timeout_s)).text if model in names else None
    return ModelTold(names, next((one.max_model_len for one in told if one.id == model), None), answer)


async def ask_names(engine: EngineUrl, timeout_s: float) -> tuple[str, ...]:
    """The names that an engine serves. Raises `EngineError`."""
    return tuple(one.id for one in await _ask_models(engine, timeout_s))


async def _ask_models(engine: EngineUrl, timeout_s: float) -> list[_Model]:
    raw = (await ask(engine, "/v1/models", timeout_s=timeout_s)).body
    try:
        return msgspec.json.decode(raw, type=_Models).data
    except msgspec.DecodeError as error:
        raise EngineError(f"{engine.id}: /v1/models: {error}") from error


def judge_models(told: Mapping[str, ModelTold], model: str, max_model_len: int) -> dict[str, Verdict]:
    """Whether every engine holds the fleet's model, its lengths and its answers."""
    answers = {engine: one.answer for engine, one in told.items() if one.answer is not None}
    common = _most(answers)
    some_generations = any(_generation(one) for one in told.values())
    return {
        engine: _judge_model(engine, one, model, max_model_len, common, some_generations)
        for engine, one in told.items()
    }


def _judge_model(
    engine: str, told: ModelTold, model: str, max_model_len: int, common: str | None, some_generations: bool
) -> Verdict:
    shown = [name for name in told.names if not name.startswith((GENERATION_NAME, LAUNCH_NAME))]
    if told.answer is None:
        return Verdict("FAIL", f"serves {', '.join(shown) or 'nothing'}, not {model}", f"start {engine} with {model}")
    if told.max_model_len is not None and told.max_model_len < max_model_len:
        said = f"takes {told.max_model_len} tokens, the fleet file promises {max_model_len}"
        return Verdict("FAIL", said, "lower engines.max_model_len, or start it from the fleet file's launch")
    if told.answer != common:
        said = f"answers the same prompt with {told.answer!r}, most engines with {common!r}"
        return Verdict(
            "FAIL", said, f"compare the model directory, the types and the version of {engine} with the others'"
        )
    if told.max_model_len is not None and told.max_model_len > max_model_len:
        said = f"takes {told.max_model_len} tokens, the fleet file says {max_model_len}"
        return Verdict("WARN", said, "set engines.max_model_len, or start it from the fleet file's launch")
    generation = _generation(told)
    if some_generations and not generation:
        said = "tells no generation, as other engines do"
        return Verdict("WARN", said, f"start {engine} with narwhal engine run")
    by = "generation told by its names" if generation else "generation told by its start time"
    return Verdict("ok", f"{model}, {told.max_model_len or '?'} tokens, {by}, answers as the others do")


def _generation(told: ModelTold) -> bool:
    return any(name.startswith(GENERATION_NAME) for name in told.names)


async def ask_tokens(engine: EngineUrl, model: str, timeout_s: float) -> tuple[tuple[int, ...], int, str]:
    """The ids of a text, how many the engine says they are, and the text that they come to. Raises `EngineError`."""
    body = {"model": model, "prompt": _TEXT, "add_special_tokens": False}
    try:
        told = json.loads((await ask(engine, "/tokenize", body, timeout_s=timeout_s)).body)
        ids = tuple(map(int, told["tokens"]))
        back = {"model": model, "tokens": list(ids)}
        text = json.loads((await ask(engine, "/detokenize", back, timeout_s=timeout_s)).body)["prompt"]
        return ids, int(told["count"]), str(text)
    except (ValueError, KeyError, TypeError) as error:
        raise EngineError(f"{engine.id}: its tokens cannot be read: {error!r}") from error


def judge_tokens(told: Mapping[str, tuple[tuple[int, ...], int, str]]) -> dict[str, Verdict]:
    """Whether all engines make the same tokens of a text, count them rightly, and make the text of them again."""
    common = _most(told)
    verdicts = {}
    for engine, (ids, count, text) in told.items():
        if count != len(ids):
            verdicts[engine] = Verdict("FAIL", f"counts {count} tokens and lists {len(ids)}", "look at its version")
        elif (ids, count, text) != common:
            assert common is not None
            said = f"{count} tokens, {common[1]} on most engines" if count != common[1] else "other tokens than most"
            verdicts[engine] = Verdict("FAIL", said, f"compare the tokenizer files of {engine} with the others'")
        elif text != _TEXT:
            said = f"{count} tokens come back as another text, on all engines alike"
            verdicts[engine] = Verdict("WARN", said, "the model's tokenizer loses text; nothing to do if that is known")
        else:
            verdicts[engine] = Verdict("ok", f"{count} tokens, and back")
    return verdicts


def _most(told: Mapping[str, T]) -> T | None:
    """The commonest value, the first one's of equally common ones; None when there is none."""
    found = Counter(told.values()).most_common(1)
    return found[0][0] if found else None


def _flat(terms: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested terms under dotted names."""
    flat: dict[str, Any] = {}
    for name, value in terms.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat
