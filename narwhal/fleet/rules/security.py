"""NW070 to NW079: who may use the admin listener, the standby too, and TLS to the engines."""

from collections.abc import Iterator

from narwhal.fleet.draft import known, written
from narwhal.fleet.facts import Facts
from narwhal.fleet.rules.routers import secret_place
from narwhal.fleet.rules.rule import Hit, rule


@rule(
    "NW070",
    "two admin tokens of one name",
    means="The log names who gave an order by the name of the token, so each name must be its own.",
    fix="Rename one of the two.",
)
def token_names_differ(facts: Facts) -> Iterator[Hit]:
    """Every admin token has a name of its own."""
    seen: set[str] = set()
    for i, token in enumerate(facts.fleet.routers.admin.tokens):
        name = known(lambda t: t.name, token)
        if name is not None and name in seen:
            path = ("routers", "admin", "tokens", i, "name")
            yield Hit(path, f"admin token {name!r} is there twice", "a name of its own", name)
        if name is not None:
            seen.add(name)


@rule(
    "NW071",
    "one secret for two admin tokens",
    means="Two tokens come from the same place, so whoever bears one bears the other, with its scope.",
    fix="Give each token a file or variable of its own.",
)
def tokens_differ(facts: Facts) -> Iterator[Hit]:
    """No two admin tokens are read from the same place."""
    seen: dict[tuple[str, str], str] = {}
    for i, token in enumerate(facts.fleet.routers.admin.tokens):
        name = known(lambda t: t.name, token) or f"tokens[{i}]"
        place = secret_place(known(lambda t: t.token, token))
        if place is None:
            continue
        if place in seen:
            text = f"{place[0]} {place[1]} is also the token {seen[place]!r}"
            yield Hit(("routers", "admin", "tokens", i, "token"), text, "a place of its own", place[1])
        seen.setdefault(place, name)


@rule(
    "NW072",
    "TLS to engines that do not serve it",
    means="Simulated engines speak plain HTTP, so the router would not reach them over TLS.",
    fix="Take `engines.tls` away, or give the engines an `https` URL of their own in `engines.overrides`.",
)
def simulated_engines_are_plain(facts: Facts) -> Iterator[Hit]:
    """With simulated engines, TLS is for those that have a URL of their own only."""
    if not facts.simulated or known(lambda: facts.fleet.engines.tls) is None:
        return
    plain = next((engine for engine in facts.engines if not written(engine.override, "url")), None)
    if plain is not None:
        text = f"the simulated engine {plain.id} speaks plain HTTP"
        yield Hit(("engines", "tls"), text, "engines with an https URL", plain.id, key=True)


@rule(
    "NW074",
    "standby that cannot follow",
    means=(
        "From another host a standby reads what the primary knows over the admin listener. Without that there is no "
        "planned handover, and it would take over with what the role map says alone."
    ),
    fix="Give `routers.admin` `bind: fabric` with `tls`, and a token of scope `replicate`.",
)
def standby_can_follow(facts: Facts) -> Iterator[Hit]:
    """A standby on another host reaches the admin listener, and has a token for it."""
    routers = facts.fleet.routers
    if routers.standby in (None, routers.primary):
        return
    missing = ["the admin listener is bound to loopback"] if routers.admin.bind == "loopback" else []
    if not any(known(lambda t: t.scope, token) in ("replicate", None) for token in routers.admin.tokens):
        missing.append("no token has the scope `replicate`")
    if missing:
        text = f"the standby is on {routers.standby!r}, and {' and '.join(missing)}"
        yield Hit(("routers", "standby"), text, "an admin listener that it may read", routers.standby)
