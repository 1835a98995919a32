"""Which engines may hand KV to each other while a fleet is rolled from one contract to the next.

What an engine runs with is known in two parts: its form, which any engine tells (version, block size, type of its KV),
and a digest that its sidecar attests (vLLM's compatibility hash, layout, the model's digest). Engines that agree in
both are a cohort, and legs pair only inside one. An engine that tells a part of it not, or not yet, is counted to the
largest cohort that it may belong to: a sidecar that is silent must not part a fleet.

A cohort without an engine of either role cannot hand over: each of its engines serves both legs itself.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from narwhal.control.state import Engine, Pool


def settle(pool: "Pool") -> None:
    """Give each engine the name of its cohort, `fingerprint`, by all that is known now."""
    engines = sorted(pool.engines.values(), key=lambda engine: engine.id)
    for engine, name in zip(engines, names([(e.vitals.form, e.vitals.attested) for e in engines]), strict=True):
        if engine.fingerprint != name:
            engine.fingerprint = name
            if engine.meter is not None:  # what is learned of a kind is learned of a contract
                pool.measure(engine, engine.meter.learned.prior, measured=False)


def names(told: Sequence[tuple[str, str]]) -> list[str]:
    """The cohort of each engine, by the form and the digest that it tells; either may be empty."""
    exact = Counter(pair for pair in told if all(pair))
    found = [_largest(exact, form) if not attested else _name(form, attested) for form, attested in told]
    formed = Counter(name for name, (form, _) in zip(found, told, strict=True) if form)
    commonest = min(formed, key=lambda name: (-formed[name], name), default="")
    return [name if form else commonest for name, (form, _) in zip(found, told, strict=True)]


def _largest(exact: Mapping[tuple[str, str], int], form: str) -> str:
    """The cohort of an engine of which no digest is known."""
    own = [pair for pair in exact if pair[0] == form]
    return _name(*min(own, key=lambda pair: (-exact[pair], pair))) if own else form


def _name(form: str, attested: str) -> str:
    return f"{form}.{attested}"


def stranded(
    prefill: Sequence["Engine"], decode: Sequence["Engine"], severed: Mapping[str, Collection[str]]
) -> tuple[str, ...]:
    """Open prefill engines whose every pair with an open decode engine of their cohort is out."""
    found = []
    for producer in prefill:
        readers = [engine.id for engine in decode if engine.fingerprint == producer.fingerprint]
        if all(reader in severed.get(producer.id, ()) for reader in readers):
            found.append(producer.id)
    return tuple(found)


def lone(prefill: Sequence["Engine"], decode: Sequence["Engine"], stranded: Collection[str]) -> tuple[str, ...]:
    """Open engines that have nobody to pair with, so that they serve both legs themselves.

    Where one role has no open engine at all there are none: the whole fleet is degraded then.
    """
    producers, consumers = ({engine.fingerprint for engine in engines} for engines in (prefill, decode))
    if not producers or not consumers or (producers == consumers and not stranded):
        return ()
    return (
        *(engine.id for engine in prefill if engine.fingerprint not in consumers or engine.id in stranded),
        *(engine.id for engine in decode if engine.fingerprint not in producers),
    )
