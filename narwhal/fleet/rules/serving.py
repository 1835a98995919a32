"""NW050 to NW058: targets against profiles, deadlines, the handoff's lease, sizes."""

from collections.abc import Iterator

from narwhal.fleet.draft import Unknown, known, written
from narwhal.fleet.facts import Facts
from narwhal.fleet.finding import Path
from narwhal.fleet.profiles import profile_names
from narwhal.fleet.rules.benchmark import curves, points
from narwhal.fleet.rules.rule import Hit, rule
from narwhal.fleet.suggest import did_you_mean, one_of


@rule(
    "NW050",
    "TPOT target below the floor",
    means="By its profile the engine needs longer for one token of an empty batch than the target allows.",
    fix="Raise `slo.tpot_s`, or use a faster engine.",
)
def tpot_can_be_met(facts: Facts) -> Iterator[Hit]:
    """The TPOT target exceeds d0 of the profile."""
    profile, speed = facts.pace()
    floor, target = profile.decode.d0_s / speed, facts.fleet.slo.tpot_s
    if target <= floor:
        text = f"tpot_s is {target:g}, and profile {profile.name!r} needs {floor:.3g} s for a token alone"
        yield Hit(("slo", "tpot_s"), text, f"more than {floor:.3g}", target)


@rule(
    "NW051",
    "TTFT target below the floor",
    means="By its profile the engine needs longer to prefill one token than the target allows.",
    fix="Raise the target, or use a faster engine.",
)
def ttft_can_be_met(facts: Facts) -> Iterator[Hit]:
    """Every TTFT target exceeds the prefill of one token."""
    profile, speed = facts.pace()
    curve = profile.prefill
    floor = max(curve.t_min_s, curve.a_s + curve.b_s_per_token + curve.c_s_per_token2) / speed
    for path, target in _ttft_targets(facts):
        if target <= floor:
            text = f"the TTFT target is {target:g} s, and profile {profile.name!r} needs {floor:.3g} s for one token"
            yield Hit(path, text, f"more than {floor:.3g}", target)


@rule(
    "NW052",
    "TTFT targets that do not rise",
    means="The first target whose length covers a prompt wins, so lengths must rise, and longer "
    "prompts get no less time.",
    fix="Order `ttft_by_prompt` by `up_to_tokens`, with times that do not fall.",
)
def ttft_targets_rise(facts: Facts) -> Iterator[Hit]:
    """Lengths of `ttft_by_prompt` rise, and times do not fall."""
    before_tokens, before_s = 0, 0.0
    for i, target in enumerate(facts.fleet.slo.ttft_by_prompt):
        tokens, ttft_s = known(lambda t: t.up_to_tokens, target), known(lambda t: t.ttft_s, target)
        path = ("slo", "ttft_by_prompt", i)
        if tokens is not None and tokens <= before_tokens:
            text = f"up_to_tokens is {tokens}, and the target before reaches {before_tokens}"
            yield Hit((*path, "up_to_tokens"), text, f"more than {before_tokens}", tokens)
        if ttft_s is not None and ttft_s < before_s:
            text = f"ttft_s is {ttft_s:g}, and shorter prompts have {before_s:g}"
            yield Hit((*path, "ttft_s"), text, f"at least {before_s:g}", ttft_s)
        before_tokens, before_s = max(before_tokens, tokens or 0), max(before_s, ttft_s or 0.0)


@rule(
    "NW053",
    "unknown profile",
    means="No shipped profile has that name; a profile of one's own is named by its path.",
    fix="Name a shipped profile, or a path with a slash.",
)
def profiles_exist(facts: Facts) -> Iterator[Hit]:
    """Profiles without a slash are shipped ones."""
    places: list[tuple[Path, str | None]] = [(("profiles", "prior"), known(lambda: facts.fleet.profiles.prior))]
    runtime = known(lambda: facts.fleet.engines.runtime)
    if runtime is not None and written(runtime, "profile"):
        places.append((("engines", "runtime", "profile"), known(lambda: getattr(runtime, "profile"))))  # noqa: B009
    places += [((*path, "traffic", "curves"), curves(point)) for path, point in known(lambda: [*points(facts)]) or ()]
    names = profile_names()
    for path, name in places:
        if name is not None and "/" not in name and not name.endswith(".json") and name not in names:
            near = did_you_mean(name, names)
            hint = f"did you mean `{near}`?" if near else None
            yield Hit(path, f"there is no profile {name!r}", f"one of {one_of(names)}", name, hint)


@rule(
    "NW054",
    "handoff lease too short",
    means="Leg 2 must be sent within half the lease. A request inside its TTFT target could lose its KV on the way.",
    fix="Raise `engines.kv_lease_s` to at least twice the longest TTFT target.",
)
def lease_outlasts_the_targets(facts: Facts) -> Iterator[Hit]:
    """Half the handoff's lease is at least the longest TTFT target."""
    lease_s = facts.fleet.engines.kv_lease_s
    longest = max((target for _, target in _ttft_targets(facts)), default=0.0)
    if longest > lease_s / 2:
        text = f"kv_lease_s is {lease_s:g}, and a TTFT target is {longest:g}"
        yield Hit(("engines", "kv_lease_s"), text, f"at least {2 * longest:g}", lease_s)


@rule(
    "NW055",
    "deadline beyond the request's",
    means="A deadline or wait is longer than the whole request may take, so it could never be reached.",
    fix="Lower it, or raise `serving.deadlines.request_s`.",
)
def deadlines_fit_the_request(facts: Facts) -> Iterator[Hit]:
    """Every other deadline is at most that of the request; 0 is off."""
    deadlines = facts.fleet.serving.deadlines
    whole = deadlines.request_s
    places = [(("serving", "deadlines", key), _deadline(facts, key)) for key in ("prefill_s", "first_token_s", "gap_s")]
    places.append((("serving", "queue", "max_wait_s"), known(lambda: facts.fleet.serving.queue.max_wait_s)))
    for path, value in places:
        if whole and value is not None and value > whole:
            yield Hit(path, f"{path[-1]} is {value:g}, and request_s is {whole:g}", f"at most {whole:g}", value)


@rule(
    "NW056",
    "deadline below its target",
    means="A request would be given up before its target has passed.",
    fix="Raise the deadline above the target, or switch it off with 0.",
)
def deadlines_outlast_the_targets(facts: Facts) -> Iterator[Hit]:
    """Deadlines of leg 1 and the first token are no less than `slo.ttft_s`, that of a gap no less than `slo.tpot_s`."""
    ttft, tpot = known(lambda: facts.fleet.slo.ttft_s), known(lambda: facts.fleet.slo.tpot_s)
    for key, name, target in (
        ("prefill_s", "ttft_s", ttft),
        ("first_token_s", "ttft_s", ttft),
        ("gap_s", "tpot_s", tpot),
    ):
        value = _deadline(facts, key)
        if value and target is not None and value < target:
            text = f"{key} is {value:g}, and slo.{name} is {target:g}"
            yield Hit(("serving", "deadlines", key), text, f"at least {target:g}, or 0", value)


@rule(
    "NW057",
    "media host that is not a host",
    means="Media URLs are compared by host name; a URL, port or path in the list would match nothing.",
    fix="Write the bare host name: `images.example.org`.",
)
def media_hosts_are_hosts(facts: Facts) -> Iterator[Hit]:
    """Entries of `media_hosts` are host names."""
    for i, host in enumerate(facts.fleet.serving.media_hosts):
        if not host or any(c in host for c in "/:@? \t"):
            yield Hit(("serving", "media_hosts", i), f"{host!r} is not a host name", "a bare host name", host)


@rule(
    "NW058",
    "no room for the largest body",
    means="A body that `serving.max_body_bytes` allows would be refused whatever else the router holds.",
    fix="Raise `serving.max_buffered_bytes` to several times `serving.max_body_bytes`, or lower that.",
)
def bodies_fit_the_memory_for_them(facts: Facts) -> Iterator[Hit]:
    """`max_buffered_bytes` is no less than `max_body_bytes`."""
    serving = facts.fleet.serving
    room, largest = serving.max_buffered_bytes, serving.max_body_bytes
    if room < largest:
        text = f"max_buffered_bytes is {room}, and max_body_bytes is {largest}"
        yield Hit(("serving", "max_buffered_bytes"), text, f"at least {largest}", room)


def _ttft_targets(facts: Facts) -> Iterator[tuple[Path, float]]:
    first = known(lambda: facts.fleet.slo.ttft_s)
    if first is not None:
        yield ("slo", "ttft_s"), first
    for i, target in enumerate(known(lambda: facts.fleet.slo.ttft_by_prompt) or []):
        ttft_s = known(lambda t: t.ttft_s, target)
        if ttft_s is not None:
            yield ("slo", "ttft_by_prompt", i, "ttft_s"), ttft_s


def _deadline(facts: Facts, key: str) -> float | None:
    try:
        return float(getattr(facts.fleet.serving.deadlines, key))
    except Unknown:
        return None
