"""Which launch an engine runs, and whether its KV goes with the others': by its names, and by its sidecar."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from narwhal.engine.dialect import LAUNCH_NAME
from narwhal.engine.render import render_launch
from narwhal.fleet import EngineSpec, Expanded
from narwhal.fleet.expand import base_url
from narwhal.preflight.pairs import Verdict
from narwhal.profiling import EngineError, EngineUrl, ask

_ATTEST_S = 10.0
"""How long a sidecar may take: it asks its engine, which answers each question within 5 s."""
_SHOWN = 12


class AttestedKv(msgspec.Struct):
    """The KV cache, as attested."""

    dtype: str | None
    block_tokens: int | None
    bytes_per_token: int | None
    layout: str | None


class Attested(msgspec.Struct):
    """What is read of an `Attestation`."""

    engine: str
    launch_digest: str
    compatibility_hash: str | None
    cache: AttestedKv
    unknown: dict[str, str]
    model_digest: str | None = None

    def terms(self) -> dict[str, object]:
        """What two engines must share to exchange KV, by name; what is not known is left out."""
        found = {
            "the compatibility hash": self.compatibility_hash,
            "the KV type": self.cache.dtype,
            "the block size": self.cache.block_tokens,
            "the bytes of a token": self.cache.bytes_per_token,
            "the layout": self.cache.layout,
            "the model": self.model_digest,
        }
        return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Sidecars:
    """What the sidecars of some engines attest."""

    attested: dict[str, Attested] = field(default_factory=dict)
    silent: dict[str, Verdict] = field(default_factory=dict)
    """Of engines without one, or whose sidecar does not do."""


def launches(expanded: Expanded) -> dict[str, str | None]:
    """The digest of the launch that the fleet file renders to, by engine; None: something else starts it."""
    found: dict[str, str | None] = {}
    for spec in expanded.engines:
        try:
            found[spec.id] = render_launch(expanded, spec).digest()
        except ValueError:
            found[spec.id] = None
    return found


def judge_launches(names: Mapping[str, tuple[str, ...]], rendered: Mapping[str, str | None]) -> dict[str, Verdict]:
    """Whether engines run the launch that the fleet file renders to, by the names that they serve."""
    return {engine: _judge_launch(engine, told, rendered.get(engine)) for engine, told in names.items()}


def _judge_launch(engine: str, names: tuple[str, ...], wanted: str | None) -> Verdict:
    digest = next((name.removeprefix(LAUNCH_NAME) for name in names if name.startswith(LAUNCH_NAME)), None)
    if wanted is None:
        return Verdict("SKIP", "it has a url of its own, so no launch of the fleet file started it")
    if digest is None:
        return Verdict("SKIP", "it tells no launch", f"start {engine} with narwhal engine run, which adds its digest")
    if digest == wanted.removeprefix("sha256:"):
        return Verdict("ok", f"runs launch {digest[:_SHOWN]}, as the fleet file renders it")
    said = f"runs launch {digest[:_SHOWN]}, the fleet file renders {wanted.removeprefix('sha256:')[:_SHOWN]}"
    return Verdict("FAIL", said, f"narwhal engine render FLEET {engine} -o FILE, and start it again from that")


async def ask_sidecar(spec: EngineSpec, rendered: str | None) -> Attested | Verdict:
    """What an engine's sidecar attests, or why there is nothing to go by. Raises nothing."""
    port = spec.attest_port
    try:
        page = await ask(EngineUrl(spec.id, base_url(spec.address, port)), "/attestation", timeout_s=_ATTEST_S)
        attested = msgspec.json.decode(page.body, type=Attested)
    except EngineError as error:
        if error.cause == "refused":
            step = f"narwhal engine attest --launch FILE beside {spec.id} serves one"
            return Verdict("SKIP", f"no sidecar answers on port {port}", step)
        return Verdict("WARN", f"its sidecar on port {port}: {error}", "look at the sidecar's log")
    except msgspec.DecodeError as error:
        return Verdict("WARN", f"port {port} serves no attestation: {error}", "free engines.attest_port_base")
    if attested.engine != spec.id or rendered not in (None, attested.launch_digest):
        said = f"the sidecar on port {port} attests {attested.engine} by another launch record"
        return Verdict("WARN", said, f"narwhal engine render FLEET {spec.id} -o FILE, and start its sidecar from that")
    return attested


def judge_attested(found: Sidecars) -> dict[str, Verdict]:
    """Whether the KV of attested engines goes together: every pair of the commonest kind does, and no other."""
    told = found.attested
    kinds = {engine: tuple(sorted(one.terms().items(), key=str)) for engine, one in told.items()}
    most = Counter(kinds.values()).most_common(1)
    usual = next((engine for engine in told if most and kinds[engine] == most[0][0]), "")
    verdicts = dict(found.silent)
    for engine, one in told.items():
        mine, theirs = one.terms(), told[usual].terms()
        differs = [
            f"{name} is {_short(mine[name])}, not {_short(theirs[name])}"
            for name in mine
            if name in theirs and mine[name] != theirs[name]
        ]
        if differs:
            said = f"it cannot exchange KV with {usual}: {'; '.join(differs)}"
            verdicts[engine] = Verdict("FAIL", said, f"start {engine} from the launch that the fleet file renders")
        else:
            verdicts[engine] = Verdict("ok", _said(one))
    return verdicts


def _said(one: Attested) -> str:
    cache = one.cache
    known = f"KV type {cache.dtype or '?'}, blocks of {cache.block_tokens or '?'} tokens"
    if one.compatibility_hash is None:
        return f"{known}; no compatibility hash: {one.unknown.get('compatibility_hash', 'not told')}"
    return f"compatibility hash {one.compatibility_hash[:_SHOWN]}, {known}"


def _short(value: object) -> str:
    return value[:_SHOWN] if isinstance(value, str) else str(value)
