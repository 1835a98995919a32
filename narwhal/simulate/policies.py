"""Policies by name, and what each changes about a run."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec

from narwhal.control import Settings
from narwhal.fleet.model import Controller, Role, Thresholds
from narwhal.simulate.arrow import Arrow
from narwhal.simulate.clairvoyant import Clairvoyant
from narwhal.simulate.engine_setup import EngineSetup
from narwhal.simulate.mover import Mover

USAGE = "static, static:3p5d, colocated, colocated:512, arrow, coldswap:60, reactive, projection, clairvoyant"


class PolicyError(ValueError):
    """A policy that cannot be used; the message says what there is."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy: how it is called, and what it changes."""

    name: str
    controller: Callable[[Controller], Controller]
    mover: Callable[[], Mover] = Mover
    split: tuple[int, int] | None = None
    """Split at the start, when the policy names one."""
    whole: bool = False
    """Every engine serves whole requests."""
    chunk_tokens: int | None = None
    cold_s: float = 0.0

    def settings(self, settings: Settings) -> Settings:
        """The settings with the policy's controller."""
        return replace(settings, controller=self.controller(settings.controller))

    def engines(self, engines: Sequence[EngineSetup]) -> list[EngineSetup]:
        """The engines with the policy's split and chunk."""
        if self.chunk_tokens is not None:
            chunk = self.chunk_tokens
            engines = [
                replace(engine, curves=msgspec.structs.replace(engine.curves, chunk_tokens=chunk)) for engine in engines
            ]
        return with_split(engines, *self.split) if self.split is not None else list(engines)


def with_split(engines: Sequence[EngineSetup], prefill: int, decode: int) -> list[EngineSetup]:
    """The engines with roles by a split: the first that are not pinned prefill. Raises `PolicyError`."""
    if prefill + decode != len(engines) or prefill < 0 or decode < 0:
        raise PolicyError(f"split {prefill}p{decode}d: the fleet has {len(engines)} engines")
    pinned = sum(engine.pin == "prefill" for engine in engines)
    free = prefill - pinned
    if free < 0 or free > sum(engine.pin is None for engine in engines):
        raise PolicyError(f"split {prefill}p{decode}d: pinned engines do not allow it")
    result = []
    for engine in engines:
        if engine.pin is not None:
            result.append(replace(engine, role=engine.pin))
            continue
        role: Role = "prefill" if free > 0 else "decode"
        free -= 1
        result.append(replace(engine, role=role))
    return result


def parse_split(text: str) -> tuple[int, int]:
    """(prefill, decode) of `3p5d`. Raises `PolicyError`."""
    match = re.fullmatch(r"(\d{1,3})p(\d{1,3})d", text.lower())
    if match is None:
        raise PolicyError(f"{text!r} is not a split; write 3p5d for three prefill and five decode engines")
    return int(match[1]), int(match[2])


def parse_policy(text: str) -> Policy:
    """The policy of a name such as `static:3p5d`. Raises `PolicyError`."""
    name, _, argument = text.partition(":")
    if name == "static":
        return Policy(text, _off, split=parse_split(argument) if argument else None)
    if name == "colocated":
        chunk = int(_number(text, argument)) if argument else None
        return Policy(text, _off, whole=True, chunk_tokens=chunk)
    if name == "coldswap":
        return Policy(text, _on(None), cold_s=_number(text, argument or "60"))
    if name in ("reactive", "projection") and not argument:
        return Policy(text, _on(name))
    if name in ("arrow", "clairvoyant") and not argument:
        return Policy(text, _off, mover=Arrow if name == "arrow" else Clairvoyant)
    raise PolicyError(f"no policy is called {text!r}; there are {USAGE}")


def _number(text: str, argument: str) -> float:
    try:
        value = float(argument)
    except ValueError:
        value = 0.0
    if not value >= 1:
        raise PolicyError(f"{text!r}: {argument!r} must be a number of at least 1")
    return value


def _off(controller: Controller) -> Controller:
    """No moves but those that something else asks for; floors stay, cooldowns are not for others' policies."""
    return controller.model_copy(update={"enabled": False, "thresholds": Thresholds()})


def _on(policy: str | None) -> Callable[[Controller], Controller]:
    def change(controller: Controller) -> Controller:
        update = {"enabled": True, "advisory": False} | ({"policy": policy} if policy else {})
        return controller.model_copy(update=update)

    return change
